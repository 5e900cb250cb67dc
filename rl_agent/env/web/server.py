"""Serves the pages of MiniWoB and of the sites of one's own on loopback, by names that browsers here resolve.

Which episode a request belongs to is told by a cookie, which the environment puts into the episode's
context and no script can read.
"""

import asyncio
import logging
import secrets
from pathlib import Path
from typing import Any

from rl_agent.env.web.miniwob import HOST as MINIWOB_HOST
from rl_agent.env.web.miniwob import pages_folder
from rl_agent.env.web.site import Site, SiteRequest, SiteResponse

log = logging.getLogger(__name__)

COOKIE = "episode"
_MAX_FORM_BYTES = 1 << 20
_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".png": "image/png",
    ".gif": "image/gif",
    ".jpg": "image/jpeg",
    ".svg": "image/svg+xml",
}


class SiteServer:
    """One server a process, on a free port of loopback; started with the first browser."""

    def __init__(self, sites: tuple[tuple[str, str], ...]) -> None:
        self.hosts = (MINIWOB_HOST, *(f"{name}.test" for name, _ in sites))
        self._pages = pages_folder()
        self._visits: dict[str, Site] = {}
        self._runner: Any = None
        self._port = 0

    async def start(self) -> int:
        """Return the port; starts the server if it does not run."""
        from aiohttp import web

        if self._runner is None:
            application = web.Application(client_max_size=_MAX_FORM_BYTES)
            application.router.add_route("*", "/{path:.*}", self._answer)
            self._runner = web.AppRunner(
                application, access_log=None, handle_signals=False, shutdown_timeout=1
            )
            await self._runner.setup()
            listener = web.TCPSite(self._runner, "127.0.0.1", 0)
            await listener.start()
            self._port = self._runner.addresses[0][1]
        return self._port

    def admit(self, site: Site) -> str:
        """Return the cookie with which a browser sees this copy of a site."""
        token = secrets.token_urlsafe(18)
        self._visits[token] = site
        return token

    def forget(self, token: str) -> None:
        """End a visit."""
        self._visits.pop(token, None)

    async def close(self) -> None:
        """End the server; does nothing where it was not started."""
        self._visits.clear()
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _answer(self, request: Any) -> Any:
        from aiohttp import web

        if request.host == MINIWOB_HOST:
            body, content_type = await asyncio.to_thread(self._file, request.path)
            if body is None:
                return web.Response(status=404, text="There is no such page.")
            return web.Response(
                body=body, content_type=content_type, headers={"Cache-Control": "max-age=3600"}
            )
        site = self._visits.get(request.cookies.get(COOKIE, ""))
        if site is None or request.host not in self.hosts:
            return web.Response(status=403, text="This site belongs to another episode.")
        form = {name: text for name, text in (await request.post()).items() if isinstance(text, str)}
        site_request = SiteRequest(request.method, request.path, dict(request.query), form)
        try:
            answer = site.respond(site_request)
        except Exception as error:  # a site is written by a user; the agent sees an ordinary error page
            log.exception("%s: the site raised %r", request.path, error)
            answer = SiteResponse("The site made an error.", "text/plain", 500)
        headers = {"Cache-Control": "no-store"}
        if answer.location is not None:
            headers["Location"] = answer.location
        status = 303 if answer.location is not None else answer.status
        return web.Response(
            text=answer.body, content_type=answer.content_type, status=status, headers=headers
        )

    def _file(self, path: str) -> tuple[bytes | None, str]:
        """Return a file of MiniWoB's folder, and of no other."""
        if self._pages is None:
            return None, ""
        file = (self._pages / path.lstrip("/")).resolve()
        if not file.is_relative_to(self._pages) or not file.is_file():
            return None, ""
        return Path(file).read_bytes(), _TYPES.get(file.suffix, "application/octet-stream")
