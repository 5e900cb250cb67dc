"""The server of the page: its addresses, and how a view becomes an answer.

    browser ─► listener ─► guard ─► handler ─► a thread reads files ─► Jinja, which escapes all ─► answer

aiohttp, because every service of this project stands on it and `http.server`; Jinja2 with autoescape, because
what is shown comes from models, web pages and task files; plain HTML and SVG with one script of ours, so that
nothing is built, fetched or vendored. A view is rendered once for all who look at it within `FRESH_S`.
"""

import asyncio
import hashlib
import json
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from aiohttp import web

from rl_agent.errors import HarnessError, MachineError
from rl_agent.http.browsers import served_names
from rl_agent.http.server import HttpListener
from rl_agent.http.tokens import TokenCheck
from rl_agent.page import run_view
from rl_agent.page.background_lookup import BackgroundLookup
from rl_agent.page.charts import duration, number
from rl_agent.page.guard import LOGIN, add_headers, guard, remember
from rl_agent.page.plots import read_plot
from rl_agent.page.pool_view import AskManager, pool_values
from rl_agent.page.shown import ShownRun, named_runs
from rl_agent.page.trajectory_views import NotIndexed, TrajectoryViews
from rl_agent.page.words import differing
from rl_agent.rollout.trajectories.browse import readable_time

log = logging.getLogger(__name__)
HERE = Path(__file__).resolve().parent
DEFAULT_PORT = 8600
REQUEST_TIMEOUT_S = 30.0
"""A connection that sends no request within this time is closed."""
MAX_CONNECTIONS = 256
FRESH_S = 2.0
"""A rendered view is given to everybody for so long."""
STATUS_EVERY_S = 2.0
STATUS_LASTS_S = 30.0
"""A status that is older is not shown as the manager's of now."""
STATUS_WAIT_S = 1.0
"""A view of the pool without a status waits so long for the manager."""
REFRESH_S = 5
"""Seconds after which a browser asks for the view of a living run again."""
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class PageSettings:
    """The options of the command `page`."""

    log_paths: tuple[Path, ...]
    host: str
    port: int | None
    """None: `DEFAULT_PORT`, or any free one where that is taken; 0: any."""
    tokens: TokenCheck
    tls: ssl.SSLContext | None
    allowed_hosts: tuple[str, ...] = ()
    ask_manager: AskManager | None = None
    """Asks the manager of the run's pool, if it has one; a folder alone is not trusted to name an address."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A view as bytes, and until when it is fresh."""

    body: bytes
    etag: str
    until: float

    @property
    def is_fresh(self) -> bool:
        return self.until >= time.monotonic()


class Page:
    """The handlers; everything that reads files runs in threads."""

    def __init__(self, settings: PageSettings) -> None:
        self._settings = settings
        self.runs = named_runs(settings.log_paths)
        self._manager = BackgroundLookup("manager", self._ask_manager, None, STATUS_EVERY_S, STATUS_LASTS_S)
        self._cache: dict[str, Rendered] = {}
        self._rendering: dict[str, asyncio.Lock] = {}
        self._static = {
            path.name: (path.read_bytes(), _TYPES[path.suffix]) for path in (HERE / "static").iterdir()
        }
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "number": number,
            "duration": duration,
            "query": lambda fields: urlencode({k: v for k, v in fields.items() if v not in (None, "")}),
            "moment": readable_time,
            "pretty": _pretty,
            "differing": lambda texts: differing(list(texts)),
        }

    def application(self) -> web.Application:
        names = served_names(self._settings.host, *self._settings.allowed_hosts)
        app = web.Application(middlewares=[guard(names, self._settings.tokens, self.login_form)])
        app.on_response_prepare.append(add_headers)
        app.add_routes(
            [
                web.get("/", self.home),
                web.get("/compare", self.compare),
                web.get("/static/{file}", self.static),
                web.get(LOGIN, self.login),
                web.post(LOGIN, self.login),
                web.get("/runs/{run}/", self.run_page),
                web.get("/runs/{run}/pool", self.pool_page),
                *TrajectoryViews(self).routes(),
            ]
        )
        return app

    def close(self) -> None:
        """Give back what the runs hold."""
        for run in self.runs.values():
            run.index.close()

    def run_of(self, request: web.Request) -> ShownRun:
        run = self.runs.get(request.match_info["run"])
        if run is None:
            raise web.HTTPNotFound(text="there is no such run here")
        return run

    async def home(self, request: web.Request) -> web.StreamResponse:
        if len(self.runs) == 1:
            raise web.HTTPFound(f"/runs/{next(iter(self.runs.values())).folder.slug}/")
        return await self.compare(request)

    async def compare(self, request: web.Request) -> web.StreamResponse:
        return await self.rendered(request, "compare.html", lambda: self._compare_values())

    def _compare_values(self) -> dict[str, Any]:
        return run_view.comparison([run.folder for run in self.runs.values()])

    async def run_page(self, request: web.Request) -> web.StreamResponse:
        run, plot = self.run_of(request), read_plot(request.query)
        return await self.rendered(
            request, "run.html", lambda: run_view.run_values(run.folder, run.diagnosis.newest(), plot), run
        )

    async def pool_page(self, request: web.Request) -> web.StreamResponse:
        run = self.run_of(request)

        def values() -> dict[str, Any]:
            status = self._manager.newest(STATUS_WAIT_S) if self._settings.ask_manager else None
            return pool_values(run.pool.record(), run.folder.numbers(), status)

        return await self.rendered(request, "pool.html", values, run)

    def _ask_manager(self) -> dict[str, Any] | None:
        assert self._settings.ask_manager is not None
        try:
            status = self._settings.ask_manager()
            return status if isinstance(status, dict) else None
        except Exception as error:  # it is gone, hangs, or answers what is no status
            log.debug("the manager: %s", error)
            return None

    async def static(self, request: web.Request) -> web.Response:
        file = self._static.get(request.match_info["file"])
        if file is None:
            raise web.HTTPNotFound()
        body, kind = file
        return web.Response(body=body, content_type=kind, headers={"Cache-Control": "max-age=300"})

    async def login(self, request: web.Request) -> web.Response:
        """Show the form for the token, or take it."""
        if request.method == "GET":
            return self.login_form(200)
        form = await request.post()
        token = str(form.get("token", "")).strip()[:4096]
        if not self._settings.tokens.is_among(f"Bearer {token}"):
            return self.login_form(401)
        answer = web.Response(status=303, headers={"Location": "/"})
        remember(answer, token, is_secure=self._settings.tls is not None)
        return answer

    def login_form(self, status: int) -> web.Response:
        text = self._templates.get_template("login.html").render(
            is_wrong=status == 401, run=None, runs=self.runs
        )
        return web.Response(text=text, status=status, content_type="text/html")

    async def rendered(
        self,
        request: web.Request,
        template: str,
        values: Callable[[], Mapping[str, Any]],
        run: ShownRun | None = None,
    ) -> web.Response:
        """Answer with a view, made in a thread; the same view is made once for all who ask at a time."""
        key = request.path_qs
        lock = self._rendering.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                entry = self._cache.get(key)
                if entry is None or not entry.is_fresh:
                    try:
                        entry = await asyncio.to_thread(self._render, template, values, run)
                    except (NotIndexed, web.HTTPException):
                        raise
                    except Exception as error:  # what a file says costs its view, and is named
                        return await self._failed(request, error, run)
                    self._cache = {key: entry} | {k: e for k, e in self._cache.items() if e.is_fresh}
        finally:
            self._rendering.pop(key, None)
        headers = {"ETag": entry.etag, "Cache-Control": "private, no-cache"}
        if request.headers.get("If-None-Match") == entry.etag:
            return web.Response(status=304, headers=headers)
        answer = web.Response(body=entry.body, content_type="text/html", charset="utf-8", headers=headers)
        if len(entry.body) > 4096:
            answer.enable_compression()
        return answer

    async def _failed(self, request: web.Request, error: Exception, run: ShownRun | None) -> web.Response:
        """Answer that a view cannot be made."""
        is_expected = isinstance(error, HarnessError)
        if not is_expected:
            log.warning("%s: %s: %s", request.path, type(error).__name__, error, exc_info=error)
        words = str(error) if is_expected else f"{type(error).__name__}: {error}"
        shown = await asyncio.to_thread(self._render, "failed.html", lambda: {"words": words}, run)
        status = 503 if is_expected else 500
        return web.Response(body=shown.body, status=status, content_type="text/html", charset="utf-8")

    def _render(
        self, template: str, values: Callable[[], Mapping[str, Any]], run: ShownRun | None
    ) -> Rendered:
        shown = {
            "runs": self.runs,
            "run": run.folder if run else None,
            "refresh_s": REFRESH_S,
            "is_live": run is None or not run.diagnosis.newest().is_over,
        }
        text = self._templates.get_template(template).render(shown | dict(values()))
        body = text.encode(errors="backslashreplace")
        return Rendered(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"', time.monotonic() + FRESH_S)


def _pretty(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, indent=1, default=str)
    except RecursionError:
        return "(nested too deeply to be shown)"


def open_listener(settings: PageSettings) -> HttpListener:
    """Listen; where the usual port is taken and none was asked for, at any. Raises ConfigError."""
    ports = (DEFAULT_PORT, 0) if settings.port is None else (settings.port,)
    for port in ports:
        try:
            return HttpListener(
                settings.host,
                port,
                login_timeout_s=REQUEST_TIMEOUT_S,
                max_connections=MAX_CONNECTIONS,
                tls=settings.tls,
                error_body=lambda status, words: json.dumps({"error": words, "status": status}),
            )
        except MachineError:
            if port == ports[-1]:
                raise
    raise AssertionError("unreachable")


async def serve(settings: PageSettings, on_listening: Callable[[str], None], leaving: asyncio.Event) -> None:
    """Serve until `leaving` is set. Raises ConfigError if the address cannot be listened on."""
    with ExitStack() as held:
        listener = held.enter_context(closing(open_listener(settings)))
        page = Page(settings)
        try:
            async with listener.answering(page.application(), stop_timeout_s=0.5):
                on_listening(listener.url)
                await leaving.wait()
        finally:
            await asyncio.to_thread(page.close)
