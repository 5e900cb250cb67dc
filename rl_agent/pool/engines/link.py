"""Sends requests to one engine, over HTTP or over the connection that its worker holds.

A `Transport` opens one request and streams the answer; leaving its block early closes the connection, which
makes every engine abort the request. Nothing here waits for a stalled stream: the machine does.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import msgspec
from yarl import URL

from rl_agent.engine import packed
from rl_agent.engine.wire import MAX_LOAD, read_gauge, read_served_model, read_started_on
from rl_agent.errors import EngineError
from rl_agent.http.kept_connections import HttpAnswer, KeptConnections, head_of
from rl_agent.pool.engines import token_texts
from rl_agent.pool.engines.adapters import ADAPTERS, Adapter, Splitter, TokensRequest, detect, is_packable
from rl_agent.pool.engines.answers import (
    AnswerCheck,
    Chunk,
    Refused,
    StreamError,
    WrongAnswer,
    is_refusal,
    words_of_error,
)
from rl_agent.pool.engines.sent_images import SentImages
from rl_agent.pool.scheduler.reports import Load

CONNECT_TIMEOUT_S = 3.0
CONTROL_TIMEOUT_S = 5.0
LOAD_TIMEOUT_S = 1.0
LAST_WORDS_S = 1.0
"""An engine may take to end a stream in which a response has ended."""
NO_SUCH_ROUTE = (403, 404)
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
_LOAD_LINE = re.compile(
    r"^(?:vllm|sglang):(num_requests_running|num_running_reqs|num_requests_waiting|num_queue_reqs"
    r"|kv_cache_usage_perc|token_usage)(?:\{[^}\n]*\})? (\S+)",
    re.MULTILINE,
)


class EngineAnswer(Protocol):
    status: int

    async def read(self) -> bytes:
        """Return the bytes that have arrived; empty at the end."""
        ...


class Transport(Protocol):
    def open(
        self, method: str, path: str, body: bytes | None = None
    ) -> AbstractAsyncContextManager[EngineAnswer]:
        """Raises StreamError if the engine cannot be reached or breaks off."""
        ...


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The description that an engine gives of itself."""

    kind: str
    model: str
    """The folder or hub name it was started on."""
    served_name: str
    max_model_len: int


class HttpTransport:
    """A transport that connects to the engine's own address, for our route by connections of `kept`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str,
        api_key: str | None = None,
        kept: KeptConnections | None = None,
    ) -> None:
        self._session = session
        self._url = URL(base_url)
        self._kept = kept if self._url.scheme == "http" else None
        self._urls: dict[str, URL] = {}
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._packed_head = head_of("POST", self._url.join(URL(packed.PATH)), self._headers)

    @asynccontextmanager
    async def open(self, method: str, path: str, body: bytes | None = None) -> AsyncIterator[EngineAnswer]:
        sending: AbstractAsyncContextManager[HttpAnswer | aiohttp.ClientResponse]
        if self._kept is not None and path == packed.PATH:
            sending = self._kept.open(self._url, self._packed_head, body or b"")
        else:
            sending = self._session.request(
                method,
                self._urls.get(path) or self._urls.setdefault(path, self._url.join(URL(path))),
                data=body,
                headers=self._headers,
                timeout=_TIMEOUT,
                allow_redirects=False,
            )
        del body  # it may hold images
        try:
            async with sending as answer:
                yield HttpAnswer(answer.status, answer.content)
        except ConnectionError as error:
            raise StreamError(str(error)) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StreamError(f"{type(error).__name__}: {error}") from error


class EngineLink:
    """A client of one engine. `probe` must have succeeded before `generate`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.on_bytes: Callable[[], None] = lambda: None
        """Told whenever bytes of a response have come, its status included."""
        self.read_images: Callable[[Sequence[str], Set[str]], Awaitable[Sequence[packed.ImageContent]]]
        """Returns images by their digests, those of the second argument with their content."""
        self._images = SentImages()
        self.info: EngineInfo | None = None
        self._adapter: Adapter | None = None
        self._has_packed = False
        """True where the engine has our own route, for what needs no text."""

    async def probe(self) -> EngineInfo:
        """Identify the engine. Raises StreamError if it does not answer, or answers like no engine."""
        await self.get("/health")
        try:
            served = read_served_model(await self.get("/v1/models"))
            if self._adapter is None:
                self._adapter = await self._detect()
            model = await self._started_on() if self._adapter.kind == "sglang" else None
        except EngineError as error:
            raise StreamError(str(error)) from error
        self.info = EngineInfo(self._adapter.kind, model or served.root, served.id, served.max_model_len)
        return self.info

    async def _started_on(self) -> str | None:
        """Return the folder that SGLang was started on if it has loaded others since, else None.

        Raises EngineError.
        """
        status, payload = await self._answer("GET", "/model_info")
        return read_started_on(payload) if status == 200 else None

    async def _detect(self) -> Adapter:
        status, payload = await self._answer("GET", "/openapi.json")
        if status != 200:
            return ADAPTERS["vllm"]  # it hides its routes; the OpenAI ones are the likeliest
        try:
            paths = list(json.loads(payload)["paths"])
            adapter = detect(paths)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StreamError("its /openapi.json cannot be read") from error
        if adapter is None:
            raise StreamError("it has neither /v1/completions nor /generate")
        self._has_packed = adapter.kind == "vllm" and packed.PATH in paths
        return adapter

    async def look(self, timeout_s: float) -> Load | None:
        """Return its load, if it reports that soon. Raises StreamError unless it is healthy in time."""
        self._expect("/health", *await self._answer("GET", "/health", timeout_s=timeout_s))
        try:
            return await self.load(min(timeout_s, LOAD_TIMEOUT_S))
        except StreamError:
            return None

    async def load(self, timeout_s: float = CONTROL_TIMEOUT_S) -> Load | None:
        """Return the engine's load; None if it does not report it."""
        status, payload = await self._answer("GET", "/metrics", timeout_s=timeout_s)
        return read_load(payload.decode("utf-8", "replace")) if status == 200 else None

    async def generate(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        params: dict[str, Any],
        request_id: str,
        *,
        token_by_token: bool = False,
        stream_interval: int | None = 1,
        needs_text: bool = True,
        needs_names: bool = False,
        vocab_size: int | None = None,
        images: Sequence[str] = (),
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the response as it grows, or whole if there is no interval.

        Raises StreamError, Refused and WrongAnswer.
        The last chunk has the finish. Who reads on to the end leaves the connection to the next request.
        Who needs no text may get some all the same. `images` are digests of images that `read_images` gives.
        """
        if self._adapter is None or self.info is None:
            raise StreamError("the engine was not probed")
        _check_params(self._adapter, params)
        interval = 1 if token_by_token else stream_interval
        request = TokensRequest(
            self.info.served_name, prompt, max_tokens, params, request_id, interval, needs_names
        )
        is_named_apart = needs_names and bool(images)
        by_text = needs_text or token_by_token or (needs_names and not is_named_apart)
        is_packed = not by_text and self._has_packed and is_packable(params)
        if images and not is_packed:
            raise Refused(
                "images: an engine takes them if vLLM was started by join_pool.sh or run.sh, from a request"
                ' with "detokenize": false that states every sampling parameter and has no stop strings'
            )
        usual = self._asked(request, is_packed=is_packed)
        async with self._asked_with(images, request) if images else usual as (adapter, answer):
            self.on_bytes()
            reader = adapter.reader(token_by_token=token_by_token)
            check = AnswerCheck(max_tokens, vocab_size, needs_names=needs_names)
            events = adapter.splitter(request)
            while part := await (_read_all(answer, self.on_bytes) if events is None else answer.read()):
                self.on_bytes()
                for payload in [part] if events is None else _payloads(events, part):
                    for chunk in reader.read(payload):
                        if is_named_apart and chunk.token_ids:
                            chunk = await self._named(chunk, request.model)
                        check.admit(chunk)
                        yield chunk
                        if chunk.finish_reason is not None:
                            if events is not None:
                                await _read_to_end(answer)
                            return
        raise StreamError("the stream ended before the response did")

    @asynccontextmanager
    async def _asked(
        self, request: TokensRequest, *, is_packed: bool
    ) -> AsyncIterator[tuple[Adapter, EngineAnswer]]:
        """Open the request by our route or the usual one. Raises StreamError, Refused.

        Whatever our route has against a request, the usual one has the last word. If that takes what ours
        refused, as one of another release does that does not know a parameter, ours is asked no more.
        """
        is_refused = False
        if is_packed:
            ours = ADAPTERS["packed"]
            async with self._transport.open("POST", ours.path, ours.body(request)) as answer:
                if answer.status == 200:
                    yield ours, answer
                    return
                is_refused = answer.status in NO_SUCH_ROUTE or is_refusal(answer.status)
        assert self._adapter is not None
        async with self._transport.open("POST", self._adapter.path, self._adapter.body(request)) as answer:
            if answer.status != 200:
                await _raise_status(answer)
            if is_refused:
                self._has_packed = False
            yield self._adapter, answer

    @asynccontextmanager
    async def _asked_with(
        self, images: Sequence[str], request: TokensRequest
    ) -> AsyncIterator[tuple[Adapter, EngineAnswer]]:
        """Open a request with images, of which the engine is sent those that it does not have.

        Raises like `_asked`.
        """
        adapter, digests = ADAPTERS["packed"], frozenset(images)
        unsent = await self._images.unsent(digests)
        with self._images.coming(unsent) as arrival:
            while True:
                contents = await self.read_images(images, unsent)
                body = adapter.body(msgspec.structs.replace(request, images=contents))
                async with self._transport.open("POST", adapter.path, body) as answer:
                    del contents, body  # an open request keeps no image in memory
                    if answer.status == 200:
                        self._images.have_come(digests)
                        arrival.set()
                        yield adapter, answer
                        return
                    if answer.status != packed.MISSING:
                        await _raise_status(answer)
                    missing = packed.read_missing(await _read_all(answer))
                if missing <= unsent or not missing <= digests:
                    raise StreamError(f"it has lost {len(missing)} images that it was just sent")
                unsent |= missing
                self._images.are_lost(missing)

    async def _named(self, chunk: Chunk, model: str) -> Chunk:
        """Return a chunk with the text of each of its tokens. Raises StreamError."""
        body = token_texts.texts_request([[token] for token in chunk.token_ids], skips_special_tokens=False)
        answer = await self.post(token_texts.PATH, msgspec.json.encode(body | {"model": model}))
        names = token_texts.read_texts(self._expect(token_texts.PATH, *answer))
        return msgspec.structs.replace(chunk, names=names)

    async def get(self, path: str) -> bytes:
        return self._expect(path, *await self._answer("GET", path))

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return status and payload of a short request. Raises StreamError if there is no answer."""
        return await self._answer("POST", path, body)

    async def _answer(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(timeout_s), self._transport.open(method, path, body) as answer:
                return answer.status, await _read_all(answer)
        except TimeoutError:
            raise StreamError(f"no answer to {path} within {timeout_s:g} s") from None

    @staticmethod
    def _expect(path: str, status: int, payload: bytes) -> bytes:
        if status != 200:
            raise StreamError(f"{path} answered HTTP {status}")
        return payload


def _check_params(adapter: Adapter, params: dict[str, Any]) -> None:
    """Raises Refused for what engines of this kind would not go on with as another began it."""
    if adapter.kind == "sglang" and params.get("repetition_penalty", 1.0) != 1.0:
        # The tokens so far are part of the prompt after a move: the penalty would forget them.
        raise Refused(
            "repetition_penalty: SGLang counts the response only, vLLM the prompt too; leave it out"
        )


def _payloads(events: Splitter, part: bytes) -> list[bytes]:
    try:
        return [payload for payload in events.feed(part) if payload != b"[DONE]"]
    except ValueError as error:
        raise WrongAnswer(str(error)) from error


async def _read_to_end(answer: EngineAnswer) -> None:
    """Read what follows the finish; a connection that is left before its end cannot be used again."""
    try:
        async with asyncio.timeout(LAST_WORDS_S):
            while await answer.read():
                pass
    except (TimeoutError, StreamError, aiohttp.ClientError, ConnectionError):
        return


async def _read_all(answer: EngineAnswer, on_bytes: Callable[[], None] = lambda: None) -> bytes:
    parts, size = [], 0
    while part := await answer.read():
        on_bytes()
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise WrongAnswer(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


async def _raise_status(answer: EngineAnswer) -> None:
    payload = await _read_all(answer)
    words = words_of_error(payload)
    raise Refused(words) if is_refusal(answer.status) else StreamError(f"HTTP {answer.status}: {words}")


def read_load(text: str) -> Load | None:
    """Read running, waiting and KV use from Prometheus text, summed (KV: the highest) over replicas.

    None where it has none of them, or one that is not a count.
    """
    running = waiting = kv_use = 0.0
    lines = _LOAD_LINE.findall(text)
    for name, shown in lines:
        if (value := read_gauge(shown)) is None:
            return None
        if "running" in name:
            running += value
        elif "waiting" in name or "queue" in name:
            waiting += value
        else:
            kv_use = max(kv_use, value)
    is_load = bool(lines) and max(running, waiting) <= MAX_LOAD
    return Load(int(running), int(waiting), min(1.0, kv_use)) if is_load else None
