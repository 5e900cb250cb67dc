"""The OpenAI address of agents' programs.

Programs that are started: one port of this machine, and a path of its own for each episode.

    http://127.0.0.1:PORT/SESSION/v1     SESSION is random: whoever knows it is the episode's program

A client that was given `OPENAI_BASE_URL` needs nothing else: no header, and any key. Programs that run
already come to an address of the configuration, take an episode, and name it in a header:

    POST /v1/sessions ─► {"session_id", "task"} ─► chats with X-Session-ID ─► POST /v1/end {"reward"} ─► 200
            └ waits until an episode is to be played; 410: the run has ended
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web
from pydantic_core import to_json

from rl_agent.env.agent.openai_wire import (
    CompletionRequest,
    completion,
    error_body,
    events,
    models,
    object_of,
    read_request,
    read_responses_request,
)
from rl_agent.env.agent.session import AgentSession, LimitReached, ModelAnswer, QuestionRefused
from rl_agent.http.browsers import refusal, served_names
from rl_agent.http.tokens import TokenCheck
from rl_agent.system.off_loop import off_loop
from rl_agent.types import StepResult

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 2**20
CLOSE_TIMEOUT_S = 1.0
"""The time in which programs that ask for another episode at the end are told that there is none."""
KEEPALIVE_S = 7 * 86400.0
"""An idle connection may be older than the pause between two rollouts, in which nothing here runs."""
UNTAKEN_S = 60.0
"""The time without a program that takes an episode after which the log says so."""
SESSION_HEADER = "X-Session-ID"
_NO_RETRY = {"x-should-retry": "false"}
"""OpenAI's clients do not ask again then."""
_ERRORS: dict[int, type[web.HTTPError]] = {
    400: web.HTTPBadRequest,
    401: web.HTTPUnauthorized,
    403: web.HTTPForbidden,
    404: web.HTTPNotFound,
    410: web.HTTPGone,
    503: web.HTTPServiceUnavailable,
}


ReadEnd = Callable[[bytes], StepResult]
"""Reads the body that ends a session. Raises ValueError for a wrong one."""


@dataclass(slots=True)
class ServedSession:
    """A session of the listener, from its beginning to the end that its program posts."""

    session: AgentSession
    read_end: ReadEnd
    task: dict[str, Any] = field(default_factory=dict)
    name: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    base_url: str = ""
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    end: asyncio.Future[StepResult] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class AgentListener:
    """Answers the programs of one event loop."""

    def __init__(self, address: tuple[str, int] | None = None, tokens: TokenCheck | None = None) -> None:
        """`address`: where programs come that run already; None: each session has a path of its own."""
        self._address = address
        self._tokens = tokens or TokenCheck((), None)
        self._names = served_names()
        self._sessions: dict[str, ServedSession] = {}
        self._offered: asyncio.Queue[ServedSession | None] = asyncio.Queue()
        """Sessions that no program has taken, and some that are over; None at the end."""
        self._runner: web.AppRunner | None = None
        self._starting = asyncio.Lock()
        self._quiet_since = 0.0
        """The time of the loop when an episode was taken last, or the log said that none was."""
        self.origin = ""

    @contextmanager
    def serving(self, session: AgentSession, read_end: ReadEnd) -> Iterator[ServedSession]:
        """Answer for a session at its base URL while the block runs. The listener has started."""
        served = ServedSession(session, read_end)
        served.base_url = f"{self.origin}/{served.name}/v1"
        self._sessions[served.name] = served
        try:
            yield served
        finally:
            self._forget(served)

    @contextmanager
    def offering(
        self, session: AgentSession, task: dict[str, Any], read_end: ReadEnd
    ) -> Iterator[ServedSession]:
        """Offer a session to the programs that ask for one, and answer for it, while the block runs."""
        offered = ServedSession(session, read_end, task)
        self._offered.put_nowait(offered)
        try:
            yield offered
        finally:
            offered.end.cancel()
            self._forget(offered)

    async def taken(self, offered: ServedSession) -> None:
        """Wait until a program takes it; the log names the address once a minute in which none takes any."""
        loop = asyncio.get_running_loop()
        offered_at = loop.time()
        while not offered.taken.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(max(self._quiet_since, offered_at) + UNTAKEN_S):
                    await offered.taken.wait()
            if max(self._quiet_since, offered_at) + UNTAKEN_S <= loop.time():
                self._quiet_since = loop.time()
                log.warning(
                    "no agent has taken an episode at %s/v1/sessions for %.0f s", self.origin, UNTAKEN_S
                )
        self._quiet_since = loop.time()

    def _forget(self, served: ServedSession) -> None:
        if self._sessions.get(served.name) is served:
            del self._sessions[served.name]

    async def start(self) -> None:
        """Listen, if it does not yet."""
        async with self._starting:
            if self._runner is not None:
                return
            app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
            at = "/{session}/v1" if self._address is None else "/v1"
            app.add_routes(
                [
                    web.post(f"{at}/chat/completions", partial(self._answer, read_request)),
                    web.post(f"{at}/responses", partial(self._answer, read_responses_request)),
                    web.get(f"{at}/models", self._models),
                    web.post(f"{at}/end", self._end),
                    *([] if self._address is None else [web.post(f"{at}/sessions", self._take)]),
                    web.route("*", "/{rest:.*}", self._unknown),
                ]
            )
            runner = web.AppRunner(
                app,
                access_log=None,
                handler_cancellation=True,
                keepalive_timeout=KEEPALIVE_S,
                shutdown_timeout=CLOSE_TIMEOUT_S,
            )
            await runner.setup()
            host, port = self._address or ("127.0.0.1", 0)
            try:
                await web.TCPSite(runner, host, port).start()
            except BaseException:
                await runner.cleanup()
                raise
            shown = f"[{host}]" if ":" in host else host
            self.origin = f"http://{shown}:{runner.addresses[0][1]}"
            self._runner = runner
            if self._address is not None:
                log.info("agents' programs may take episodes at %s/v1/sessions", self.origin)

    async def close(self) -> None:
        """Tell programs that wait for another episode that there is none, and stop listening."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        self._offered.put_nowait(None)
        if self._address is not None:
            await asyncio.sleep(CLOSE_TIMEOUT_S)  # requests of the time between rollouts are not read yet
        await runner.cleanup()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        names = None if self._tokens.is_needed else self._names
        if reason := refusal(request, names, "use its address, or set token_file"):
            raise _refusal(403, reason)
        if self._tokens.is_needed and not self._tokens.is_among(request.headers.get("Authorization", "")):
            raise _refusal(401, "a valid token is needed: it is the API key of an OpenAI client")
        return await handler(request)

    def _served(self, request: web.Request) -> ServedSession:
        name = request.match_info.get("session") or request.headers.get(SESSION_HEADER)
        if name is None:
            raise _refusal(400, f"the header {SESSION_HEADER} is missing; POST /v1/sessions gives a session")
        if name not in self._sessions:
            raise _refusal(404, "this episode is over, or never was")
        return self._sessions[name]

    async def _take(self, request: web.Request) -> web.Response:
        """Give a program an episode; the same again to one that asks with the same id."""
        name = _session_id(await request.read())
        while name not in self._sessions:
            offered = await self._offered.get()
            if offered is None or _has_left(request):
                self._offered.put_nowait(offered)
                raise _refusal(410, "the run has ended, or was stopped")
            if name in self._sessions:
                self._offered.put_nowait(offered)
            elif not offered.end.done():
                offered.name = name = name or offered.name
                self._sessions[name] = offered
                offered.taken.set()
        return _json(200, {"session_id": name, "task": self._sessions[name].task})

    async def _end(self, request: web.Request) -> web.Response:
        served, body = self._served(request), await request.read()
        try:
            result = await off_loop(len(body), served.read_end, body)
        except ValueError as error:
            log.warning("the end of an agent's episode was refused: %s", error)
            raise _refusal(400, str(error)) from None
        if served.end.done():
            raise _refusal(404, "this episode is over")
        served.end.set_result(result)
        self._forget(served)
        return _json(200, {})

    async def _models(self, request: web.Request) -> web.Response:
        return _json(200, models(self._served(request).session.model))

    async def _unknown(self, request: web.Request) -> web.Response:
        words = (
            f"{request.method} {request.path.partition('/v1')[1] or '/'}{request.path.partition('/v1')[2]}"
        )
        first = "" if self._address is None else "POST /v1/sessions, "
        answered = f"{first}/v1/chat/completions, /v1/responses, /v1/models and /v1/end"
        raise _refusal(404, f"{words[:100]}: only {answered} are answered here")

    async def _answer(
        self, read: Callable[[bytes], CompletionRequest], request: web.Request
    ) -> web.StreamResponse:
        session, body = self._served(request).session, await request.read()
        try:
            call = await off_loop(len(body), read, body)
            answers = await _answers(session, call)
        except LimitReached as error:
            raise _refusal(400, str(error), "context_length_exceeded") from None
        except (QuestionRefused, ValueError) as error:
            raise _refusal(400, str(error)) from None
        if not call.is_streamed:
            return web.Response(body=completion(call, answers), content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events(call, answers):
            await response.write(event)
        await response.write_eof()
        return response


def _has_left(request: web.Request) -> bool:
    """Return whether a client hung up in the time between two rollouts, in which nothing here runs."""
    if request.transport is None:
        return True
    with request.transport.get_extra_info("socket").dup() as connection:
        try:
            return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True


def _session_id(body: bytes) -> str:
    """Return the id that a program names; empty if it leaves that to the listener."""
    try:
        name = object_of(body).get("session_id", "") if body else ""
    except ValueError as error:
        raise _refusal(400, str(error)) from None
    if not isinstance(name, str):
        raise _refusal(400, "session_id: expected a text")
    return name


async def _answers(session: AgentSession, call: CompletionRequest) -> list[ModelAnswer]:
    """Ask for each choice of a request."""
    try:
        async with asyncio.TaskGroup() as jobs:
            answers = [jobs.create_task(session.ask(call.question)) for _ in range(call.choices)]
    except* QuestionRefused as group:
        raise group.exceptions[0] from None
    except* Exception as group:
        log.debug("an agent's question was not answered", exc_info=group)
        raise _refusal(503, "the model does not answer; the episode is over") from None
    return [answer.result() for answer in answers]


def _refusal(status: int, message: str, code: str = "") -> web.HTTPException:
    body = to_json(error_body(message, code)).decode()
    return _ERRORS[status](text=body, content_type="application/json", headers=_NO_RETRY)


def _json(status: int, content: dict[str, Any]) -> web.Response:
    return web.Response(status=status, body=to_json(content), content_type="application/json")
