"""The OpenAI address of agents' programs: one port of this machine, and a path of its own for each episode.

    http://127.0.0.1:PORT/SESSION/v1     SESSION is random: whoever knows it is the episode's program

A client that was given `OPENAI_BASE_URL` needs nothing else: no header, and any key.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    read_request,
    read_responses_request,
)
from rl_agent.env.agent.session import AgentSession, LimitReached, ModelAnswer, QuestionRefused
from rl_agent.system.off_loop import off_loop

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 2**20
CLOSE_TIMEOUT_S = 1.0
_NO_RETRY = {"x-should-retry": "false"}
"""OpenAI's clients do not ask again then."""


class AgentListener:
    """Answers the programs of one event loop."""

    def __init__(self) -> None:
        self._sessions: dict[str, AgentSession] = {}
        self._runner: web.AppRunner | None = None
        self._starting = asyncio.Lock()
        self._origin = ""

    @contextmanager
    def serving(self, session: AgentSession) -> Iterator[str]:
        """Answer for a session while the block runs; yields its base URL. The listener has started."""
        name = secrets.token_urlsafe(24)
        self._sessions[name] = session
        try:
            yield f"{self._origin}/{name}/v1"
        finally:
            del self._sessions[name]

    async def start(self) -> None:
        """Listen, if it does not yet."""
        async with self._starting:
            if self._runner is not None:
                return
            app = web.Application(client_max_size=MAX_BODY_BYTES)
            app.add_routes(
                [
                    web.post("/{session}/v1/chat/completions", partial(self._answer, read_request)),
                    web.post("/{session}/v1/responses", partial(self._answer, read_responses_request)),
                    web.get("/{session}/v1/models", self._models),
                    web.route("*", "/{rest:.*}", _unknown),
                ]
            )
            runner = web.AppRunner(
                app, access_log=None, handler_cancellation=True, shutdown_timeout=CLOSE_TIMEOUT_S
            )
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self._origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self._runner = runner

    async def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _session(self, request: web.Request) -> AgentSession:
        session = self._sessions.get(request.match_info["session"])
        if session is None:
            raise _refusal(404, "this episode is over, or never was")
        return session

    async def _models(self, request: web.Request) -> web.Response:
        return _json(200, models(self._session(request).model))

    async def _answer(
        self, read: Callable[[bytes], CompletionRequest], request: web.Request
    ) -> web.StreamResponse:
        session = self._session(request)
        body = await request.read()
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


async def _answers(session: AgentSession, call: CompletionRequest) -> list[ModelAnswer]:
    """Ask for each choice of a request."""
    try:
        async with asyncio.TaskGroup() as jobs:
            asked = [jobs.create_task(session.ask(call.question)) for _ in range(call.choices)]
    except* QuestionRefused as group:
        raise group.exceptions[0] from None
    except* Exception as group:
        log.debug("an agent's question was not answered", exc_info=group)
        raise _refusal(503, "the model does not answer; the episode is over") from None
    return [job.result() for job in asked]


async def _unknown(request: web.Request) -> web.Response:
    words = f"{request.method} {request.path.partition('/v1')[1] or '/'}{request.path.partition('/v1')[2]}"
    answered = "/v1/chat/completions, /v1/responses and /v1/models"
    raise _refusal(404, f"{words[:100]}: only {answered} are answered here")


def _refusal(status: int, message: str, code: str = "") -> web.HTTPException:
    kind = {400: web.HTTPBadRequest, 404: web.HTTPNotFound, 503: web.HTTPServiceUnavailable}[status]
    body = to_json(error_body(message, code)).decode()
    return kind(text=body, content_type="application/json", headers=_NO_RETRY)


def _json(status: int, content: dict[str, Any]) -> web.Response:
    return web.Response(status=status, body=to_json(content), content_type="application/json")
