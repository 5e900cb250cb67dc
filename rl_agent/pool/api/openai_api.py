"""The OpenAI API in front of the pool: any client or agent framework, pointed here, uses all engines.

`/v1/completions` takes text or token ids and answers as vLLM does, with token ids and logprobs on demand.
`/v1/chat/completions` lets an engine render the messages to tokens, samples them like any other request (so
they move like any other), and lets an engine turn the response into a message, tool calls included, or while
it grows into the pieces of one (`openai_chat`). `/v1/responses` is a chat in other words.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Protocol

import msgspec
from aiohttp import web

from rl_agent.chat.responses_answer import ResponseEvents, whole_response
from rl_agent.chat.responses_call import read_responses_call
from rl_agent.config.plan import PoolConfig
from rl_agent.engine.packed import MISSING, ImageContent, MissingImages
from rl_agent.engine.wire import POOL_OWNER
from rl_agent.pool.api.bodies import CALL_BYTES, read_object
from rl_agent.pool.api.chat_images import take_images
from rl_agent.pool.api.openai_answers import DONE, CompletionEvents, completion_body, unique
from rl_agent.pool.api.openai_chat import ChatEvents, chat_body
from rl_agent.pool.api.openai_reading import EngineReader
from rl_agent.pool.api.openai_schemas import Call, ChatCall, CompletionCall, read_call
from rl_agent.pool.problem import problem
from rl_agent.pool.runtime.calls import key_of
from rl_agent.pool.runtime.detokenize import text_of
from rl_agent.pool.runtime.runtime import Runtime
from rl_agent.pool.scheduler.events import EpisodeEnded
from rl_agent.pool.scheduler.migration import can_continue
from rl_agent.pool.scheduler.records import Order, Request, RequestId
from rl_agent.system.off_loop import off_loop

LONGEST_RESPONSE = 2**24
"""Limit where nobody knows the context yet."""


class _Events(Protocol):
    """The events of a streamed answer."""

    def is_worth_showing(self, request: Request) -> bool: ...

    def end(self, request: Request, answer: Any) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One call of a client, and how its answer is made: of a text, or of a message."""

    request: web.Request
    call: Call
    prompts: Sequence[tuple[int, ...]]
    params: dict[str, Any]
    images: Sequence[str]
    """The digests of the images of the prompt."""
    body: Callable[[Any, str, list[Request], list[Any]], bytes]
    events: _Events
    grow: Callable[[Request], Awaitable[bytes]]
    """Events of what is new in a response that goes on; empty where nothing is sure yet."""
    read: Callable[[Request], Awaitable[Any]]
    """The content of a response that has ended."""
    shown: Callable[[bytes], bytes] = bytes
    """Makes what the client reads of the body, or of each piece of a stream."""


class OpenAiApi:
    """The handlers of the OpenAI API."""

    def __init__(self, config: PoolConfig, runtime: Runtime) -> None:
        self._config = config
        self._runtime = runtime
        self._pool = runtime.pool
        self._reader = EngineReader(config, runtime.pool)
        self._context: dict[str | None, int] = {}
        """The shortest context of a model's engines, when any was last there."""
        self._started = int(time.time())

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self.models),
            web.post("/v1/completions", self.completions),
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/responses", self.responses),
            web.delete("/episodes/{episode}", self.end_episode),
        ]

    async def models(self, request: web.Request) -> web.Response:
        """Return the model that the pool serves."""
        state, limit = self._pool.state, self._context_limit()
        if limit is None:
            raise problem(503, "no engine has joined yet, so no model is known")
        card = {"id": state.model, "root": state.model, "object": "model", "owned_by": POOL_OWNER}
        of_vllm: dict[str, Any] = {"created": self._started, "parent": None, "permission": []}
        ours = {"max_model_len": limit, "weight_version": state.weight_version}
        return web.json_response({"object": "list", "data": [card | of_vllm | ours]})

    def _context_limit(self) -> int | None:
        """Return the most tokens of prompt and response together; None while no engine has joined."""
        state = self._pool.state
        limits = [engine.max_model_len for engine in state.engines.values() if engine.max_model_len]
        if limits:
            self._context = {state.model: min(limits)}
        return self._context.get(state.model)

    def _check_model(self, call: Call) -> None:
        """Refuse a model that the pool has never served; an earlier name means the current one."""
        models = self._pool.state.models
        if call.model and models and call.model not in models:
            raise problem(404, f"The model `{call.model}` does not exist.", param="model")

    def _wanted_tokens(self, call: Call, prompt: tuple[int, ...]) -> int:
        """Return how many tokens to sample at most. Raises web.HTTPException if the context is too short."""
        limit, size = self._context_limit(), len(prompt)
        left = None if limit is None else limit - size
        if call.wanted_tokens is None:
            usual = self._pool.facts_of(self._pool.state.model).usual_length or LONGEST_RESPONSE
            return max(1, min(usual, usual if left is None else left))
        if left is not None and call.wanted_tokens > left:
            raise problem(
                400,
                f"This model's maximum context length is {limit} tokens. However, you requested"
                f" {call.wanted_tokens} output tokens and your prompt contains {size} input tokens, for a"
                f" total of {call.wanted_tokens + size} tokens. Please reduce the length of the input prompt"
                " or the number of requested output tokens.",
                param="input_tokens",
            )
        return call.wanted_tokens

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Complete a prompt as OpenAI and vLLM do, over all engines."""
        call = read_call(await read_object(request), CompletionCall)
        images = call.images
        if images:  # their content is not kept in memory
            call = call.model_copy(update={"images": ()})
        self._check_model(call)
        adds = call.add_special_tokens
        prompts = [
            await self._reader.tokens_of_text(prompt, call, adds_special_tokens=adds)
            if isinstance(prompt, str)
            else prompt
            for prompt in call.prompt
        ]
        events = CompletionEvents(call, self._pool.state.model, prompts[0])

        async def grow(pool_request: Request) -> bytes:
            return events.grown(pool_request)

        read = partial(text_of, pool=self._pool)
        digests = [image.digest for image in images]
        with self._pool.images.kept(digests):
            missing = await self._add(images)
            del images  # their content is on the disk
            if missing:
                content = msgspec.json.encode(MissingImages(tuple(missing)))
                return web.Response(body=content, status=MISSING, content_type="application/json")
            return await self._answer(
                _Exchange(request, call, prompts, call.params, digests, completion_body, events, grow, read)
            )

    async def _add(self, images: Sequence[ImageContent]) -> list[str]:
        """Keep images; return the digests of those that are missing. Raises web.HTTPException."""
        try:
            return await self._pool.images.add(images)
        except ValueError as error:
            raise problem(400, f"images: {error}", param="images") from None

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer a chat as OpenAI does, over all engines."""
        return await self._answer_chat(request, await read_object(request))

    async def responses(self, request: web.Request) -> web.StreamResponse:
        """Answer a call of OpenAI's Responses API, which is a chat."""
        try:
            call = read_responses_call(await read_object(request))
        except ValueError as error:
            raise problem(400, str(error), param=str(error).partition(":")[0]) from None
        shown = ResponseEvents(call).feed if call.stream else partial(whole_response, call)
        return await self._answer_chat(request, call.chat(), shown)

    async def _answer_chat(
        self, request: web.Request, chat: dict[str, Any], shown: Callable[[bytes], bytes] = bytes
    ) -> web.StreamResponse:
        chat, images = await off_loop(request.content_length or CALL_BYTES, take_images, chat)
        call = read_call(chat, ChatCall)
        self._check_model(call)
        digests = [image.digest for image in images]
        with self._pool.images.kept(digests):
            await self._add(images)
            del images  # their content is on the disk
            exchange = await self._chat(request, chat, call, digests)
            return await self._answer(replace(exchange, shown=shown))

    async def _chat(
        self, request: web.Request, chat: dict[str, Any], call: ChatCall, images: Sequence[str]
    ) -> _Exchange:
        if images:
            prompt, params = await self._reader.prompt_with_images(chat, call)
        else:
            prompt, params = await self._reader.prompt_of_chat(chat, call)
        events = ChatEvents(call, self._pool.state.model, prompt, has_tools=bool(chat.get("tools")))

        async def grow(pool_request: Request) -> bytes:
            num_tokens = len(pool_request.token_ids)
            message = await self._reader.message_now(chat, call, pool_request)
            return b"" if message is None else events.piece(pool_request, message, num_tokens)

        read = partial(self._reader.message, chat, call)
        return _Exchange(request, call, [prompt], params, images, chat_body, events, grow, read)

    async def end_episode(self, request: web.Request) -> web.Response:
        """End an episode, of which no turn will come any more; `X-Run` names its run, as with its turns."""
        self._pool.handle(EpisodeEnded(_run_of(request), request.match_info["episode"]))
        return web.json_response({})

    # Requests -----------------------------------------------------------------------------------------------

    @contextmanager
    def _requests(self, exchange: _Exchange) -> Iterator[list[tuple[Request, asyncio.Event]]]:
        """Submit `n` requests for each prompt of a call; leaving the block cancels those still open."""
        request, call = exchange.request, exchange.call
        prompts = [(prompt, self._wanted_tokens(call, prompt)) for prompt in exchange.prompts]
        if self._pool.open_requests() + len(prompts) * call.n > self._config.max_open_requests:
            raise problem(429, "the pool has as many open requests as it takes")
        call_id = f"api-{unique()}"
        run = _run_of(request)
        deadline = self._pool.clock() + (call.timeout_s or self._config.request_timeout_s)
        group = call.group or call.session_id or _session_of(request)
        name = call.request_id or request.headers.get("X-Request-Id", "")
        followed = []
        try:
            for index, (place, number) in enumerate(product(range(len(prompts)), range(call.n))):
                prompt, max_tokens = prompts[place]
                params = dict(exchange.params)
                if number and isinstance(params.get("seed"), int):
                    params["seed"] += number
                order = Order(
                    RequestId(run, f"{call_id}-{index}"),
                    prompt,
                    max_tokens,
                    params,
                    deadline,
                    group=group or f"{call_id}-{place}",
                    min_weight_version=call.min_weight_version,
                    expected_tokens=call.expected_tokens or None,
                    episode=call.episode or "",
                    is_read_along=call.stream,
                    needs_text=call.needs_text,
                    needs_names=call.needs_names,
                    vocab_size=call.vocab_size or None,
                    images=tuple(exchange.images),
                )
                watch = self._pool.watches[order.request_id] = asyncio.Event()
                self._runtime.calls.begin(key_of(run, name, index), order)
                followed.append((self._pool.state.requests[order.request_id], watch))
            yield followed
        finally:
            for index, (pool_request, _) in enumerate(followed):
                self._runtime.calls.end(key_of(run, name, index), pool_request.request_id)
            self._pool.release([pool_request.request_id for pool_request, _ in followed])

    async def _answer(self, exchange: _Exchange) -> web.StreamResponse:
        with self._requests(exchange) as followed:
            if exchange.call.stream:
                return await self._stream(exchange, *followed[0])
            ended = [await _end_of(request, watch) for request, watch in followed]
        answers = [await exchange.read(request) for request in ended]
        body = exchange.body(exchange.call, self._pool.state.model, ended, answers)
        return web.Response(body=exchange.shown(body), content_type="application/json")

    async def _stream(self, call: _Exchange, request: Request, watch: asyncio.Event) -> web.StreamResponse:
        """Send pieces as they come, and one piece of a response that begins anew after a move."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        while request.is_open:
            await watch.wait()
            watch.clear()
            is_sure = request.is_open and can_continue(call.params)
            if is_sure and call.events.is_worth_showing(request) and (written := await call.grow(request)):
                await _write(call.request, response, call.shown(written))
        try:
            if request.failure:
                raise failure_of(request)
            answer = await call.read(request)
        except web.HTTPException as error:
            return await _break_off(response, error, call.shown)
        await _write(call.request, response, call.shown(call.events.end(request, answer)))
        await response.write_eof()
        return response


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
    """Write events; the stream begins with the first, so that a failure before it is an answer of its own."""
    if not response.prepared:
        await response.prepare(request)
    await response.write(events)


async def _end_of(request: Request, ended: asyncio.Event) -> Request:
    await ended.wait()
    if request.failure:
        raise failure_of(request)
    return request


def failure_of(request: Request) -> web.HTTPException:
    """Return the error that the client of a failed request gets."""
    assert request.failure_kind is not None, "the request has not failed"
    return problem(request.failure_kind.http_status, request.failure)


async def _break_off(
    response: web.StreamResponse, error: web.HTTPException, shown: Callable[[bytes], bytes]
) -> web.StreamResponse:
    """End a stream with an error, as vLLM does; before its first event the error is the answer."""
    if not response.prepared:
        raise error
    await response.write(shown(b"data: " + (error.text or "").encode() + b"\n\n" + DONE))
    await response.write_eof()
    return response
