"""Encodes requests for each kind of engine, and decodes its answers. Pure: requests out, chunks in.

    vllm         POST /v1/completions with token ids: every version, gives text
    packed       POST /v1/packed_tokens of a vLLM that `engine.vllm_serve` started: instead of the former
                 where nobody needs text and `is_packable`
    sglang       POST /generate: documented wire format; lists may be cumulative or incremental

A reader checks the form, and, where the engine counts tokens, that none is missing (an error) or sent twice
(dropped). Whatever the wire, `answers.AnswerCheck` then looks at the tokens themselves.
`tests/unit/pool/engines/test_adapters.py` is what any adapter must pass.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from pydantic_core import to_json

from rl_agent.engine import packed
from rl_agent.engine.shapes import (
    ANSWER,
    NO_LOGPROBS,
    UNREADABLE,
    AnswerError,
    AnswerShape,
    Count,
    TokenUsage,
)
from rl_agent.pool.engines.answers import Chunk, Refused, StreamError, WrongAnswer, excerpt, is_refusal
from rl_agent.pool.engines.sse import EventReader

T = TypeVar("T")


class TokensRequest(msgspec.Struct, frozen=True):
    """A request for tokens, whatever the kind of engine."""

    model: str
    prompt: Sequence[int]
    max_tokens: int
    params: dict[str, Any]
    request_id: str
    stream_interval: int | None
    """None: the whole response at once."""
    needs_names: bool = False
    """True if the names of the tokens are wanted."""
    images: Sequence[packed.ImageContent] = ()
    """Images of the prompt; `packed` alone takes any."""


class Reader(Protocol):
    def read(self, payload: bytes) -> list[Chunk]:
        """Return the chunks of one event. Raises StreamError."""
        ...


class Splitter(Protocol):
    def feed(self, received: bytes) -> list[bytes]:
        """Return the events that are complete. Raises ValueError."""
        ...


class Adapter(Protocol):
    kind: str
    path: str

    def body(self, request: TokensRequest) -> bytes: ...

    def splitter(self, request: TokensRequest) -> Splitter | None:
        """Return what makes events of an answer's bytes; None: the whole answer is one."""
        ...

    def reader(self, *, token_by_token: bool) -> Reader: ...


class _SglangFinish(AnswerShape, frozen=True):
    type: str
    matched: int | str | None = None
    message: str = ""
    status_code: int | None = None


class _SglangMeta(AnswerShape, frozen=True):
    completion_tokens: Count
    finish_reason: _SglangFinish | None = None
    output_token_logprobs: tuple[tuple[float, int, str | None], ...] = ()


class _Sglang(AnswerShape, frozen=True):
    text: str = ""
    meta_info: _SglangMeta | None = None
    error: AnswerError | None = None


_SGLANG = msgspec.json.Decoder(_Sglang)


class _TokenCount:
    """Compares the tokens seen with the engine's own count."""

    def __init__(self) -> None:
        self.seen = 0

    def is_new(self, tokens: Sequence[int], logprobs: Sequence[float], usage: TokenUsage | None) -> bool:
        size = len(tokens)
        if size != len(logprobs):
            raise WrongAnswer(f"{size} tokens with {len(logprobs)} logprobs")
        if usage is not None and usage.completion_tokens <= self.seen and size:
            return False
        self.seen += size
        if usage is not None and usage.completion_tokens != self.seen:
            raise WrongAnswer(f"token {self.seen} came where the engine counts {usage.completion_tokens}")
        return True


class _Events:
    """Answers with server-sent events where a stream was asked for."""

    def splitter(self, request: TokensRequest) -> Splitter | None:
        return EventReader() if request.stream_interval is not None else None


_VLLM_STREAM: dict[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


class VllmCompletions(_Events):
    kind = "vllm"
    path = "/v1/completions"

    def body(self, request: TokensRequest) -> bytes:
        interval = request.stream_interval
        return to_json(
            ({} if interval is None else _VLLM_STREAM | {"stream_interval": interval})
            | request.params
            | {
                "model": request.model,
                "prompt": list(request.prompt),
                "max_tokens": request.max_tokens,
                "logprobs": 0,
                "request_id": request.request_id,
                "return_token_ids": True,
            }
        )

    def reader(self, *, token_by_token: bool) -> Reader:
        return _VllmReader(token_by_token=token_by_token)


class _VllmReader:
    def __init__(self, *, token_by_token: bool) -> None:
        self._token_by_token = token_by_token
        self._count = _TokenCount()

    def read(self, payload: bytes) -> list[Chunk]:
        event = _validate(ANSWER, payload)
        _raise_error(event.error)
        if not event.choices:
            return []
        choice = event.choices[0]
        numbers = choice.logprobs or NO_LOGPROBS
        tokens, logprobs = choice.token_ids or (), numbers.values or ()
        if not self._count.is_new(tokens, logprobs, event.usage):
            return []
        text, names = choice.text or "", numbers.tokens
        whole = Chunk(tokens, logprobs, text, choice.finish_reason, choice.stop_reason, names)
        return _split(whole, numbers.text_offset) if self._token_by_token and len(tokens) > 1 else [whole]


def _split(whole: Chunk, offsets: tuple[int, ...]) -> list[Chunk]:
    """Split into one chunk for each token, so that a stop string ends at the token that completes it."""
    size = len(whole.token_ids)
    if len(offsets) != size:
        return [whole]
    starts = [offset - offsets[0] for offset in offsets]
    chunks = [
        Chunk(
            whole.token_ids[at : at + 1],
            whole.logprobs[at : at + 1],
            whole.text[start:end],
            names=whole.names[at : at + 1],
        )
        for at, (start, end) in enumerate(zip(starts, [*starts[1:], len(whole.text)], strict=True))
    ]
    ended = msgspec.structs.replace(
        chunks[-1], finish_reason=whole.finish_reason, stop_reason=whole.stop_reason
    )
    return [*chunks[:-1], ended]


class PackedTokens:
    """Our own route in a vLLM server, with a fraction of the other routes' work for each token."""

    kind = "packed"
    path = packed.PATH

    def body(self, request: TokensRequest) -> bytes:
        sampling = request.params | {"max_tokens": request.max_tokens}
        interval, images = request.stream_interval, request.images
        return packed.packed_request(request.prompt, sampling, request.request_id, interval, images)

    def splitter(self, request: TokensRequest) -> Splitter:
        return packed.PackedFrames()

    def reader(self, *, token_by_token: bool) -> Reader:
        return _PackedReader()


class _PackedReader:
    def read(self, payload: bytes) -> list[Chunk]:
        try:
            choice = packed.unpack(payload)
        except UnicodeDecodeError as error:
            raise WrongAnswer(f"a frame that cannot be read: {error}") from error
        tokens, logprobs = choice.token_ids or (), (choice.logprobs or NO_LOGPROBS).values or ()
        ending = choice.finish_reason, choice.stop_reason
        return [Chunk(tokens, logprobs, "", *ending, prompt_token_ids=choice.prompt_token_ids or ())]


class Sglang(_Events):
    """SGLang's own route; its stream interval is the server's (`--stream-interval`)."""

    kind = "sglang"
    path = "/generate"
    _names = {  # noqa: RUF012 - never changed
        "seed": "sampling_seed",
        "min_tokens": "min_new_tokens",
        "include_stop_str_in_output": "no_stop_trim",
    }

    def body(self, request: TokensRequest) -> bytes:
        sampling = {self._names.get(name, name): value for name, value in request.params.items()}
        return to_json(
            {
                "rid": request.request_id,
                "input_ids": list(request.prompt),
                "sampling_params": sampling | {"max_new_tokens": request.max_tokens, "n": 1},
                "return_logprob": True,
                "top_logprobs_num": 0,
                **({"return_text_in_logprobs": True} if request.needs_names else {}),
                "stream": request.stream_interval is not None,
            }
        )

    def reader(self, *, token_by_token: bool) -> Reader:
        return _SglangReader()


class _SglangReader:
    def __init__(self) -> None:
        self._seen = 0
        self._text = ""

    def read(self, payload: bytes) -> list[Chunk]:
        event = _validate(_SGLANG, payload)
        _raise_error(event.error)
        meta = event.meta_info
        if meta is None:
            raise WrongAnswer("an event without meta_info")
        finish = meta.finish_reason
        if finish is not None and finish.type == "abort":
            if finish.status_code == 400:
                raise Refused(excerpt(finish.message))
            words = excerpt(finish.message) or "no reason given"
            raise StreamError(f"the engine aborted the request: {words}")
        new = meta.completion_tokens - self._seen
        entries = meta.output_token_logprobs
        if new < 0 or (new == 0 and finish is None):
            return []
        if len(entries) not in (new, meta.completion_tokens):
            raise WrongAnswer(f"{len(entries)} logprobs with {new} new tokens of {meta.completion_tokens}")
        is_cumulative = len(entries) == meta.completion_tokens
        entries = entries[len(entries) - new :] if new else ()
        text = event.text
        if is_cumulative and text.startswith(self._text):
            text = text[len(self._text) :]
        self._text += text
        self._seen = meta.completion_tokens
        return [
            Chunk(
                tuple(entry[1] for entry in entries),
                tuple(entry[0] for entry in entries),
                text,
                finish.type if finish else None,
                finish.matched if finish else None,
                tuple(entry[2] for entry in entries if entry[2] is not None),
            )
        ]


ADAPTERS: dict[str, Adapter] = {
    adapter.kind: adapter for adapter in (VllmCompletions(), PackedTokens(), Sglang())
}


def detect(paths: Sequence[str]) -> Adapter | None:
    """Return the adapter for a server with these routes; None if none of them is known."""
    if "/generate" in paths and ("/model_info" in paths or "/get_model_info" in paths):
        return ADAPTERS["sglang"]
    return ADAPTERS["vllm"] if VllmCompletions.path in paths else None


def is_packable(params: dict[str, Any]) -> bool:
    """Return whether the packed route samples with these as `/v1/completions` would.

    What is left unstated it never takes from the model's generation_config.json, and it knows no others.
    """
    return params.keys() >= packed.MODELS_OWN and params.keys() <= packed.PARAMETERS


def _validate(decoder: "msgspec.json.Decoder[T]", payload: bytes) -> T:
    try:
        return decoder.decode(payload)
    except UNREADABLE as error:
        raise WrongAnswer(f"an event that cannot be read: {error}") from error


def _raise_error(error: AnswerError | None) -> None:
    if error is None:
        return
    words = excerpt(error.message)
    if any(is_refusal(code) and error.code in (code, str(code)) for code in range(400, 500)):
        raise Refused(words)
    raise StreamError(words)
