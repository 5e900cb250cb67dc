"""The OpenAI API in front of the pool: any client or agent framework, pointed here, uses all engines.

`/v1/completions` takes text or token ids and answers as vLLM does, with token ids and logprobs on demand.
`/v1/chat/completions` lets an engine render the messages to tokens, samples them like any other request (so
they move like any other), and lets an engine turn the response into a message, tool calls included, or while
it grows into the pieces of one (`openai_chat`).

With the header `X-Session-Id` every exchange is recorded: prompt and response tokens, logprobs, versions;
`GET /sessions/{id}` gives them, so an agent that knows nothing of training leaves a trajectory.
"""

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from pydantic_core import to_json

from rl_agent.config import PoolConfig
from rl_agent.pool.answers import StreamError
from rl_agent.pool.bodies import read_object
from rl_agent.pool.continuation import can_continue, stop_strings
from rl_agent.pool.events import EpisodeEnded
from rl_agent.pool.link import EngineLink
from rl_agent.pool.openai_chat import (
    DERENDER,
    ChatEvents,
    chat_body,
    choice_of,
    derender_body,
    message_of,
)
from rl_agent.pool.openai_wire import Asked, chunk_body, completion_body, read_asked, unique
from rl_agent.pool.openapi import described
from rl_agent.pool.problem import problem
from rl_agent.pool.records import Order, Request
from rl_agent.pool.results import spans_of
from rl_agent.pool.service import Pool, Watch
from rl_agent.pool.text import text_of
from rl_agent.pool.wire import ChatCall, CompletionCall

_OF_THE_CALL = (
    "stream",
    "stream_options",
    "n",
    "timeout_s",
    "min_weight_version",
    "expected_tokens",
    "group",
    "episode",
    "vocab_size",
    "detokenize",
)
MAX_EXCHANGES = 4096
"""Of one session."""


class OpenAiApi:
    def __init__(self, config: PoolConfig, pool: Pool) -> None:
        self._config = config
        self._pool = pool
        self._context: dict[str | None, int] = {}
        """Of the model: the shortest context of its engines, when any was last there."""
        self._sessions: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self.models),
            web.post("/v1/completions", self.completions),
            web.post("/v1/chat/completions", self.chat),
            web.get("/sessions/{session}", self.session),
            web.delete("/sessions/{session}", self.forget_session),
            web.delete("/episodes/{episode}", self.end_episode),
        ]

    @described()
    async def models(self, request: web.Request) -> web.Response:
        """The model that the pool serves."""
        state = self._pool.state
        limits = [engine.max_model_len for engine in state.engines.values() if engine.max_model_len]
        if limits:
            self._context = {state.model: min(limits)}
        if state.model not in self._context:
            raise problem(503, "no engine has joined yet, so no model is known")
        card = {"id": state.model, "root": state.model, "object": "model", "owned_by": "pool"}
        card_with_limit: dict[str, Any] = card | {
            "max_model_len": self._context[state.model],
            "weight_version": state.weight_version,
        }
        return web.json_response({"object": "list", "data": [card_with_limit]})

    @described(body=CompletionCall)
    async def completions(self, request: web.Request) -> web.StreamResponse:
        """As OpenAI's and vLLM's, over all engines."""
        asked = read_asked(await read_object(request), is_chat=False)
        prompt = asked.prompt_token_ids or await self._tokenize({"prompt": asked.prompt_text}, asked)
        async with self._requests(request, asked, prompt) as followed:
            if asked.stream:
                return await self._stream(request, asked, followed, prompt)
            ended = [await _end_of(one, watch) for one, watch in followed]
            texts = [await text_of(one, self._pool) for one in ended]
            self._record(request, asked, ended, prompt, texts)
            body = completion_body(asked, self._pool.state.model, ended, texts, prompt)
            return web.Response(body=body, content_type="application/json")

    @described(body=ChatCall)
    async def chat(self, request: web.Request) -> web.StreamResponse:
        """As OpenAI's, over all engines."""
        body = await read_object(request)
        asked = read_asked(body, is_chat=True)
        rendered = await self._ask_engine("/v1/chat/completions/render", _alone(body), asked)
        if rendered.get("features") or rendered.get("content_parts"):
            raise problem(501, "the pool takes no images; send such a request to an engine")
        prompt = tuple(int(token) for token in rendered["token_ids"])
        async with self._requests(request, asked, prompt) as followed:
            if asked.stream:
                return await self._stream_chat(request, body, asked, followed, prompt)
            ended = [await _end_of(one, watch) for one, watch in followed]
        choices = [
            choice_of(one, await self._parsed(body, asked, one, len(prompt)), asked, index)
            for index, one in enumerate(ended)
        ]
        self._record(request, asked, ended, prompt, [choice["message"] for choice in choices])
        return web.json_response(chat_body(asked, self._pool.state.model, choices, ended, prompt))

    @described()
    async def session(self, request: web.Request) -> web.Response:
        """What passed with this X-Session-Id: tokens, logprobs, versions."""
        name = request.match_info["session"]
        if name not in self._sessions:
            raise problem(404, f"there is no session {name[:200]!r}")
        return web.Response(
            body=to_json({"exchanges": self._sessions[name]}), content_type="application/json"
        )

    @described()
    async def forget_session(self, request: web.Request) -> web.Response:
        """Drop a recorded session."""
        self._sessions.pop(request.match_info["session"], None)
        return web.json_response({})

    @described()
    async def end_episode(self, request: web.Request) -> web.Response:
        """None of its turns will come any more; whose it is, `X-Run` says, as with its turns."""
        self._pool.tell(EpisodeEnded(_run_of(request), request.match_info["episode"]))
        return web.json_response({})

    # Requests -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _requests(
        self, request: web.Request, asked: Asked, prompt: tuple[int, ...]
    ) -> AsyncIterator[list[tuple[Request, Watch]]]:
        """The pool's requests for one call, `n` of them; whoever leaves early cancels what is open."""
        if self._pool.open_requests() + asked.n > self._config.max_open_requests:
            raise problem(429, "the pool has as many open requests as it takes")
        call = f"api-{unique()}"
        run = _run_of(request)
        deadline = self._pool.clock() + (asked.timeout_s or self._config.request_timeout_s)
        group = asked.group or _session_of(request) or call
        followed = []
        try:
            for index in range(asked.n):
                params = dict(asked.params)
                if index and isinstance(params.get("seed"), int):
                    params["seed"] += index
                order = Order(
                    f"{call}-{index}",
                    run,
                    prompt,
                    asked.wanted_tokens,
                    params,
                    deadline,
                    group=group,
                    min_weight_version=asked.min_weight_version,
                    expected_tokens=asked.expected_tokens,
                    episode=asked.episode,
                    is_read_along=asked.stream,
                    needs_text=asked.needs_text,
                    vocab_size=asked.vocab_size,
                )
                watch = self._pool.watches[order.request_id] = Watch()
                self._pool.submit(order)
                followed.append((self._pool.state.requests[order.request_id], watch))
            yield followed
        finally:
            self._pool.release([one.request_id for one, _ in followed])

    async def _stream(
        self,
        request: web.Request,
        asked: Asked,
        followed: list[tuple[Request, Watch]],
        prompt: tuple[int, ...],
    ) -> web.StreamResponse:
        one, watch = followed[0]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sent_tokens, sent_text = 0, 0
        text, joined = "", 0
        holds = max(map(len, stop_strings(asked.params)), default=1) - 1
        while True:
            watch.changed.clear()
            is_over = not one.is_open
            # What is begun afresh after a move must not have been shown before.
            if is_over or can_continue(asked.params):
                if is_over:
                    text = await text_of(one, self._pool)
                else:
                    text, joined = text + "".join(one.texts[joined:]), len(one.texts)
                end = len(text) if is_over else max(sent_text, len(text) - holds)
                made = len(one.token_ids)
                if is_over or made > sent_tokens:
                    piece = (sent_tokens, made, text[sent_text:end])
                    await response.write(chunk_body(asked, self._pool.state.model, one, piece, prompt))
                    sent_tokens, sent_text = made, max(sent_text, end)
            if is_over:
                break
            await watch.changed.wait()
        self._record(request, asked, [one], prompt, ["".join(one.texts)])
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _stream_chat(
        self,
        request: web.Request,
        body: dict[str, Any],
        asked: Asked,
        followed: list[tuple[Request, Watch]],
        prompt: tuple[int, ...],
    ) -> web.StreamResponse:
        """Pieces of what an engine takes the response for; of what is begun afresh after a move, one."""
        one, watch = followed[0]
        events = ChatEvents(asked, self._pool.state.model, prompt, has_tools=bool(body.get("tools")))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        while one.is_open:
            await watch.changed.wait()
            watch.changed.clear()
            if one.is_open and can_continue(asked.params) and events.is_worth_showing(one):
                made = len(one.token_ids)
                message = await self._parsed_now(body, one, len(prompt))
                if message is not None and (written := events.piece(one, message, made)):
                    await _write(request, response, written)
        try:
            raise_failure(one)
            message = await self._parsed(body, asked, one, len(prompt))
        except web.HTTPException as error:
            if not response.prepared:
                raise
            await _write(request, response, b"data: " + (error.text or "").encode() + b"\n\n")
        else:
            self._record(request, asked, [one], prompt, [message])
            await _write(request, response, events.end(one, message))
        await response.write_eof()
        return response

    # What engines do better ---------------------------------------------------------------------------------

    async def _tokenize(self, body: dict[str, Any], asked: Asked) -> tuple[int, ...]:
        return tuple((await self._ask_engine("/tokenize", body, asked))["tokens"])

    async def _parsed(
        self, body: dict[str, Any], asked: Asked, one: Request, prompt_tokens: int
    ) -> dict[str, Any]:
        """What an engine takes the response for, as far as it is there: reasoning, content, tool calls."""
        ask = derender_body(one, _alone(body), self._pool.state.model, prompt_tokens)
        answer = await self._ask_engine(DERENDER, ask, asked)
        return message_of(answer, one)

    async def _parsed_now(
        self, body: dict[str, Any], one: Request, prompt_tokens: int
    ) -> dict[str, Any] | None:
        """The same of a response that still grows; None if no engine says it at once."""
        link = self._pool.ready_link()
        if link is None or link.info is None:
            return None
        ask = derender_body(one, _alone(body), self._pool.state.model, prompt_tokens)
        try:
            answer = await _ask(link, DERENDER, ask | {"model": link.info.served_name})
        except (StreamError, web.HTTPException):
            return None
        return message_of(answer, one)

    async def _ask_engine(self, path: str, body: dict[str, Any], asked: Asked) -> dict[str, Any]:
        """Any engine's answer; waits for one to be there, and asks another if one fails."""
        limit_s = asked.timeout_s or self._config.request_timeout_s
        words = "no engine in the pool"
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    link = self._pool.ready_link()
                    if link is not None and link.info is not None:
                        try:
                            return await _ask(link, path, body | {"model": link.info.served_name})
                        except StreamError as error:
                            words = str(error)
                    await asyncio.sleep(self._config.heartbeat_s / 2)
        except TimeoutError:
            raise problem(504, f"{path}: {words} within {limit_s:g} s") from None

    def _record(
        self,
        request: web.Request,
        asked: Asked,
        ended: list[Request],
        prompt: tuple[int, ...],
        said: list[Any],
    ) -> None:
        name = _session_of(request)
        if name is None:
            return
        exchanges = self._sessions.setdefault(name, [])
        self._sessions.move_to_end(name)
        while len(self._sessions) > self._config.max_sessions:
            self._sessions.popitem(last=False)
        for one, response in zip(ended, said, strict=True):
            if one.failure or len(exchanges) >= MAX_EXCHANGES:
                continue
            exchanges.append(
                {
                    "messages": asked.messages,
                    "prompt_token_ids": prompt,
                    "response": response,
                    "token_ids": list(one.token_ids),
                    "logprobs": list(one.logprobs),
                    "finish_reason": one.finish_reason,
                    "weight_versions": [span.model_dump() for span in spans_of(one)],
                    "sampling": asked.params,
                    "time": time.time(),
                }
            )


def _run_of(request: web.Request) -> str:
    return _header(request, "X-Run") or "api"


def _session_of(request: web.Request) -> str | None:
    return _header(request, "X-Session-Id") or None


def _header(request: web.Request, key: str) -> str:
    name = request.headers.get(key, "")
    if len(name) > 200 or not name.isprintable():
        raise problem(400, f"{key}: expected a name of at most 200 printable characters")
    return name


async def _write(request: web.Request, response: web.StreamResponse, events: bytes) -> None:
    """Until something is there to be written, a failure is an answer of its own."""
    if not response.prepared:
        await response.prepare(request)
    await response.write(events)


async def _end_of(request: Request, watch: Watch) -> Request:
    await watch.ended.wait()
    raise_failure(request)
    return request


def raise_failure(request: Request) -> None:
    """Raises web.HTTPException if the request failed: 400 its own fault, 504 too late, else 502."""
    if not request.failure:
        return
    if request.failure.startswith(("refused", "its prompt")):
        raise problem(400, request.failure)
    raise problem(504 if request.failure.startswith("its deadline") else 502, request.failure)


async def _ask(link: EngineLink, path: str, body: dict[str, Any]) -> dict[str, Any]:
    status, payload = await link.post(path, to_json(body))
    if status == 404:
        raise problem(501, f"the engines of this pool have no {path}; chat and text prompts need it")
    if 400 <= status < 500 and status != 429:
        words = " ".join(payload[:400].decode("utf-8", "replace").split())
        raise problem(400, f"refused by the engine: {words}")
    if status != 200:
        raise StreamError(f"{path} answered HTTP {status}")
    try:
        answer = json.loads(payload)
    except ValueError as error:
        raise StreamError(f"{path}: {error}") from error
    if not isinstance(answer, dict):
        raise StreamError(f"{path} gave no JSON object")
    return answer


def _alone(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in _OF_THE_CALL}
