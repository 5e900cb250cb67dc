"""Speaks to one inference server: any plain `vllm serve`, one engine or data-parallel ranks.

A request that meets a broken connection, a 429 or a 5xx is sent again after a capped, jittered, growing
pause. When the attempts are spent the server's health decides what that means: a healthy server ends
this episode (`EngineError`), a dead one ends the rollout (`RetryLater`), because every other episode
would fail the same way and a resume should find them still to do. The loop is written out, without a library
for retries: to tell these cases apart is what this module is for. Cancelling a call closes its
connection, which makes vLLM abort the request.
"""

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from yarl import URL

from rl_agent.engine import wire
from rl_agent.engine.connections import EngineConnections
from rl_agent.engine.image_content import inlined
from rl_agent.engine.packed import MAX_SENT_IMAGES, MISSING, PATH, ImageContent, PromptImage, read_missing
from rl_agent.engine.wire import EnginePressure, Response, Sampling, ServedModel
from rl_agent.errors import EngineError, PromptTooLong, RetryLater
from rl_agent.system.off_loop import off_loop
from rl_agent.types import Generation

log = logging.getLogger(__name__)

CONTROL_TIMEOUT_S = 10.0
"""Deadline of the small questions: which model, how many requests, alive or not."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 8.0
_OK = 200
_BAD_REQUEST = 400
_UNAVAILABLE = 503
_TOO_MANY_REQUESTS = 429
_SERVER_ERROR = 500
_TOO_LONG = re.compile("(context|model|allowed) length")
"""Messages of vLLM and SGLang about a prompt that does not fit."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The `rollout.request_*` keys, and the key of a server that wants one."""

    request_timeout_s: float
    retries: int
    api_key: str | None = None
    tls_ca: Path | None = None
    """Certificates that are trusted besides the system's."""
    run: str = ""
    """The run of these requests: runs share a pool fairly."""
    inlines_images: bool = False
    """Send images themselves, to a server that cannot read their files."""


class _ImagesMissing(EngineError):
    """The server needs the content of these images."""

    def __init__(self, digests: frozenset[str]) -> None:
        super().__init__(f"the server has lost {len(digests)} images that it was just sent")
        self.digests = digests


def _contents_of(images: Sequence[PromptImage], new: Set[str]) -> list[ImageContent]:
    """Read the files of the new images; one that is shown twice is sent once. Raises EngineError."""
    unsent, contents = set(new), list[ImageContent]()
    for image in images:
        try:
            content = image.path.read_bytes() if image.digest in unsent else None
        except OSError as error:
            raise EngineError(f"{image.path}: {error.strerror}") from error
        unsent.discard(image.digest)
        contents.append(ImageContent(image.digest, content))
    return contents


def pause_before(attempt: int, jitter: float) -> float:
    """Return the seconds before attempt 1, 2, …: 1, 2, … up to 8, cut to 10-100 % by `jitter`.

    So thousands of requests that failed together come back one after the other.
    """
    pause_s: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (attempt - 1))
    return pause_s * (0.1 + 0.9 * jitter)


class EngineClient:
    """Asks one server over a pool of connections; `async with` connects and asks which model it serves.

    `identify` maps that model to its weight version and raises where it is not the wanted one; every
    response is stamped with the version. `connections` live on after this client; without them it has its
    own. Not for several event loops.
    """

    def __init__(
        self,
        base_url: str,
        settings: ClientSettings,
        *,
        identify: Callable[[ServedModel], int],
        connections: EngineConnections | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._url = URL(base_url)
        self._settings = settings
        self._identify = identify
        self._lent = connections
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if settings.api_key:
            self._headers["Authorization"] = f"Bearer {settings.api_key}"
        if settings.run:
            self._headers["X-Run"] = settings.run
        self._sleep = sleep
        self._jitter = jitter
        self.response_tokens = 0
        """The tokens of all responses so far, those of running episodes included."""
        self._completions = self._url / "v1" / "completions"
        self._packed_tokens = self._url.join(URL(PATH))
        self.has_packed_tokens = False
        self._sent_images = set[str]()
        """Digests of images that the server has been sent; it may have dropped some."""
        self._chat_completions = self._url / "v1" / "chat" / "completions"

    async def __aenter__(self) -> Self:
        self._connections = self._lent or EngineConnections(self._settings.tls_ca)
        try:
            self.served = await self.served_model()
            self.weight_version = await asyncio.to_thread(self._identify, self.served)
            self.has_packed_tokens = not self.served.is_pool and await self._has(PATH)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        if self._lent is None:
            await self._connections.close()

    @property
    def takes_images(self) -> bool:
        """Tell whether the server takes images beside token ids."""
        return self.has_packed_tokens or self.served.is_pool

    async def served_model(self) -> ServedModel:
        """Ask for the served model. Raises RetryLater if there is no answer, EngineError for a wrong one."""
        return wire.read_served_model(await self._ask("v1/models"))

    async def pressure(self) -> EnginePressure:
        """Ask how many requests run and wait. Raises like `served_model`."""
        return wire.read_pressure((await self._ask("metrics")).decode())

    async def tokenize(self, body: dict[str, Any]) -> tuple[int, ...] | None:
        """Ask for the tokens of a text or a chat; None where the server does not answer that as vLLM does."""
        try:
            return wire.read_tokens(await self._ask("tokenize", body))
        except (EngineError, RetryLater) as error:
            log.debug("the engine does not tell its tokens: %s", error)
            return None

    async def _has(self, path: str) -> bool:
        """Ask for a route that answers a GET where it is there."""
        try:
            await self._ask(path.removeprefix("/"))
        except EngineError:
            return False
        return True

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        *,
        request_id: str,
        decode: Callable[[Sequence[int], Sequence[int]], str] | None = None,
    ) -> Generation:
        """Draw one response to a prompt of token ids, a text.

        `decode` makes the text of a prompt's response here: it is what the tokens say, whatever a server
        says, and spares a pool's engines that work. An answer that cannot be right is asked for anew.

        Raises PromptTooLong, EngineError, TimeoutError (no whole answer within the request timeout), and
        RetryLater if the server is gone.
        """
        started = time.monotonic()
        return self._stamped(await self._drawn(prompt_token_ids, sampling, request_id, decode), started)

    async def generate_with_images(
        self,
        prompt_token_ids: Sequence[int],
        images: Sequence[PromptImage],
        sampling: Sampling,
        *,
        request_id: str,
        decode: Callable[[Sequence[int], Sequence[int]], str],
    ) -> tuple[tuple[int, ...], Generation]:
        """Draw one response to token ids of which one stands for each image; also the prompt as the model
        saw it.

        Only a server with `takes_images` can. Raises like `generate`, also for a file that is gone.
        """
        started = time.monotonic()
        sent = {image.digest: image for image in images}
        new = sent.keys() - self._sent_images
        while True:
            files = await asyncio.to_thread(_contents_of, images, new)
            try:
                response = await self._drawn(prompt_token_ids, sampling, request_id, decode, files)
            except _ImagesMissing as error:  # it has dropped them, or is another server now
                if error.digests <= new or not error.digests <= sent.keys():
                    raise
                new |= error.digests
                continue
            break
        if not response.prompt_token_ids:
            raise EngineError("the server's answer lacks prompt_token_ids")
        if len(self._sent_images) > MAX_SENT_IMAGES:
            self._sent_images.clear()
        self._sent_images |= sent.keys()
        return response.prompt_token_ids, self._stamped(response, started)

    async def _drawn(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        request_id: str,
        decode: Callable[[Sequence[int], Sequence[int]], str] | None,
        images: Sequence[ImageContent] = (),
    ) -> Response:
        room = self.served.max_model_len - len(prompt)
        if room < 1:
            raise PromptTooLong(f"{len(prompt)} tokens fill the {self.served.max_model_len}")
        if sampling.max_tokens > room:
            sampling = replace(sampling, max_tokens=room)
        is_pool = self.served.is_pool
        size = len(prompt) + sum(len(image.content or b"") for image in images)
        if self.has_packed_tokens and decode is not None and not sampling.stop:
            body = await off_loop(size, wire.packed_request, prompt, sampling, request_id, images)
            read = partial(wire.read_packed, decode=partial(decode, prompt), sampling=sampling)
            return await self._post(self._packed_tokens, body, read)
        body = await off_loop(
            size,
            wire.completion_request,
            self.served.id,
            prompt,
            sampling if is_pool else replace(sampling, vocab_size=None),
            request_id,
            # An engine gives it all the same; a pool finds the texts in it that end a response.
            needs_text=decode is None or bool(sampling.stop) or not is_pool,
            images=images,
        )
        decode_response = decode and partial(decode, prompt)
        read = partial(wire.read_completion, decode=decode_response, sampling=sampling)
        return await self._post(self._completions, body, read)

    async def generate_chat(
        self,
        messages: Sequence[dict[str, Any]],
        sampling: Sampling,
        *,
        request_id: str,
        chat_template_kwargs: dict[str, Any],
        decode: Callable[[Sequence[int]], str],
        tools: Sequence[dict[str, Any]] = (),
    ) -> tuple[tuple[int, ...], Generation]:
        """Draw one response to messages that hold images; also the prompt's token ids.

        For servers that this project did not start. Raises like `generate`; whether the prompt is too long,
        the server says.
        """
        params = replace(sampling, vocab_size=None)  # which only a pool takes
        if self._settings.inlines_images:
            messages = await asyncio.to_thread(inlined, messages)
        body = wire.chat_request(self.served.id, messages, params, request_id, chat_template_kwargs, tools)
        started = time.monotonic()
        read = partial(wire.read_chat_completion, decode=decode, sampling=sampling)
        response = await self._post(self._chat_completions, body, read)
        return response.prompt_token_ids, self._stamped(response, started)

    async def end_episode(self, episode: str) -> None:
        """Tell a pool that none of its turns will come any more; else it waits in vain for a time."""
        try:
            await self._send("DELETE", self._url / "episodes" / episode, b"", CONTROL_TIMEOUT_S)
        except (ConnectionError, TimeoutError) as error:
            problem = str(error) or type(error).__name__
            log.warning("the pool could not be told that an episode has ended: %s", problem)

    def _stamped(self, response: Response, started: float) -> Generation:
        self.response_tokens += len(response.token_ids)
        versions = [span.weight_version for span in response.spans] or [self.weight_version]
        return Generation(
            token_ids=response.token_ids,
            logprobs=response.logprobs,
            text=response.text,
            finish_reason=response.finish_reason,
            weight_version_min=min(versions),
            weight_version_max=max(versions),
            duration_s=time.monotonic() - started,
            spans=response.spans,
        )

    async def _send(self, method: str, url: URL, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        return await self._connections.send(method, url, self._headers, body, timeout_s)

    async def _post(self, url: URL, body: bytes, read: Callable[[bytes], Response]) -> Response:
        attempt, timeout_s = 0, self._settings.request_timeout_s
        while True:
            try:
                status, payload = await self._send("POST", url, body, timeout_s)
                if status == _OK:
                    try:
                        response = await off_loop(len(payload), read, payload)
                    except EngineError as error:
                        problem = str(error)
                    else:
                        if response.finish_reason != wire.ABORTED:
                            return response
                        problem = "the engine aborted the request"
                else:
                    problem = f"HTTP {status}: {_excerpt(payload)}"
                    if status == MISSING and (digests := read_missing(payload)):
                        raise _ImagesMissing(digests)
                    if status < _SERVER_ERROR and status != _TOO_MANY_REQUESTS:
                        if status == _BAD_REQUEST and _TOO_LONG.search(problem):
                            raise PromptTooLong(problem)
                        raise EngineError(f"the engine refused the request: {problem}")
            except ConnectionError as error:
                problem = str(error)
            except TimeoutError:
                raise TimeoutError(f"the engine gave no answer within {timeout_s:g} s") from None
            if attempt == self._settings.retries:
                await self._require_alive(problem)
                raise EngineError(f"the engine failed {attempt + 1} times; the last: {problem}")
            attempt += 1
            await self._sleep(pause_before(attempt, self._jitter()))

    async def _require_alive(self, problem: str) -> None:
        try:
            await self._ask("health")
        except (EngineError, RetryLater) as error:
            raise RetryLater(f"the engine at {self._url} is not healthy ({error}); {problem}") from error

    async def _ask(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        method, content = ("GET", b"") if body is None else ("POST", msgspec.json.encode(body))
        try:
            status, payload = await self._send(method, self._url / path, content, CONTROL_TIMEOUT_S)
        except (ConnectionError, TimeoutError) as error:
            problem = str(error) or type(error).__name__
            raise RetryLater(f"the engine at {self._url} does not answer /{path}: {problem}") from error
        if status == _UNAVAILABLE:
            words = _excerpt(payload)
            raise RetryLater(f"the engine at {self._url} does not serve now: /{path} answered 503: {words}")
        if status != _OK:
            raise EngineError(f"{self._url}: /{path} answered HTTP {status}: {_excerpt(payload)}")
        return payload


def _excerpt(payload: bytes) -> str:
    return " ".join(payload[:300].decode(errors="replace").split())
