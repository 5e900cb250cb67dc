"""Requests to an inference server over HTTP, and its answers. Pure: bytes in, values out.

Requests state every sampling parameter: vLLM fills what is missing from the model's own
`generation_config.json`, and a penalty that slipped in there would not be in the recorded behaviour.

An answer is whole here, and what it lacks is an error; `shapes` says what is read of it.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from msgspec.json import Decoder

from rl_agent.engine import packed
from rl_agent.engine.shapes import (
    ANSWER,
    UNREADABLE,
    AnswerShape,
    EngineChoice,
    TokenId,
    WeightVersion,
)
from rl_agent.engine.tokens import flaw_of
from rl_agent.errors import EngineError
from rl_agent.types import TokenSpan

T = TypeVar("T")
FINISHED = ("stop", "length")
ABORTED = "abort"
"""The server itself ended the request."""
MAX_MODEL_LEN = 2**31
MAX_LOAD = 2**31
MAX_NAME = 4096
POOL_OWNER = "pool"
"""Owner of the models that a pool lists at `/v1/models`; an engine names its own maker."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The parameters with which the next response is drawn."""

    temperature: float
    top_p: float
    top_k: int
    """-1: all tokens."""
    min_p: float
    max_tokens: int
    seed: int
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a response besides those that the model's files name."""
    stop: tuple[str, ...] = ()
    """Texts that end a response; they are among its tokens, and not in its text."""
    min_weight_version: int = 0
    """The least version of the engine that draws it; asked of a pool alone."""
    expected_tokens: int = 0
    """Expected length, if it is known; only sent to a pool."""
    group: str = ""
    """Responses to what began alike, as siblings' do; only sent to a pool."""
    episode: str = ""
    """Names the episode whose turns are all to be of one weight version; only sent to a pool."""
    vocab_size: int | None = None
    """Token ids that an answer may hold are below it; None: nobody knows."""
    timeout_s: float = 0.0
    """Longest wait for the response, 0 where the server decides; only sent to a pool."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that a server holds, as `/v1/models` says."""

    id: str
    root: str
    """The folder or hub name it was loaded from."""
    max_model_len: int
    """Tokens of prompt and response together."""
    weight_version: int | None = None
    """The version of the engine; only a pool reports it."""
    is_pool: bool = False


@dataclass(frozen=True, slots=True)
class EnginePressure:
    """Requests inside the server, over all of its data-parallel engines."""

    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Response:
    """One response as the server sent it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """The log-probabilities of the model itself, before temperature, top-p and the like (vLLM's default
    `raw_logprobs`)."""
    text: str
    """The decoded response without the token that ended it; special tokens inside it are kept."""
    finish_reason: str
    """`stop` or `length`; `abort` where the server itself ended the request."""
    prompt_token_ids: tuple[int, ...] = ()
    """The prompt as the model saw it, where the server made it: of a chat, or of images."""
    spans: tuple[TokenSpan, ...] = ()
    """The engines that made the tokens; only a pool tells."""


class _Tokens(AnswerShape, frozen=True):
    tokens: tuple[TokenId, ...]


class _ModelCard(AnswerShape, frozen=True):
    id: Annotated[str, Meta(max_length=MAX_NAME)]
    root: Annotated[str, Meta(max_length=MAX_NAME)]
    max_model_len: Annotated[int, Meta(ge=1, lt=MAX_MODEL_LEN)]
    weight_version: WeightVersion | None = None
    owned_by: Any = None


class _ModelList(AnswerShape, frozen=True):
    data: tuple[_ModelCard, ...]


class _SglangModel(AnswerShape, frozen=True):
    tokenizer_path: str | None = None
    weight_version: str | None = None


_MODEL_LIST = Decoder(_ModelList)
_TOKENS = Decoder(_Tokens)
_SGLANG_MODEL = Decoder(_SglangModel)
_PRESSURE_LINE = re.compile(r"^vllm:num_requests_(running|waiting)(?:\{[^}\n]*\})? (\S+)", re.MULTILINE)


def packed_request(
    prompt_token_ids: Sequence[int],
    sampling: Sampling,
    request_id: str,
    images: Sequence[packed.ImageContent] = (),
) -> bytes:
    """Return the body of `POST /v1/packed_tokens`, for a response that is sent whole."""
    params = {name: value for name, value in _sampled(sampling).items() if name in packed.PARAMETERS}
    return packed.packed_request(prompt_token_ids, params, request_id, None, images)


def completion_request(
    model: str,
    prompt_token_ids: Sequence[int],
    sampling: Sampling,
    request_id: str,
    *,
    needs_text: bool = True,
    images: Sequence[packed.ImageContent] = (),
) -> bytes:
    """Return the body of `POST /v1/completions`: token ids; a pool may leave the text away.

    Images are a pool's alone.
    """
    # logprobs=0 is the sampled token's alone; 1 would add the likeliest one to every position.
    body = _common(model, sampling, request_id) | {"prompt": list(prompt_token_ids), "logprobs": 0}
    if not needs_text:
        body |= {"detokenize": False}
    return msgspec.json.encode(body | {"images": images} if images else body)


def chat_request(
    model: str,
    messages: Sequence[dict[str, Any]],
    sampling: Sampling,
    request_id: str,
    chat_template_kwargs: dict[str, Any],
    tools: Sequence[dict[str, Any]] = (),
) -> bytes:
    """Return the body of `POST /v1/chat/completions`, for images, which only the server can tokenise."""
    body = _common(model, sampling, request_id) | {
        "messages": list(messages),
        "chat_template_kwargs": chat_template_kwargs,
        "logprobs": True,
        "top_logprobs": 0,
    }
    if tools:  # shown by the template; what calls say is read here, so that the server need not know how
        body |= {"tools": list(tools), "tool_choice": "none"}
    return msgspec.json.encode(body)


_OF_A_POOL = ("min_weight_version", "expected_tokens", "group", "episode", "vocab_size", "timeout_s")
_WHERE_SET = ("stop_token_ids", "stop", *_OF_A_POOL)
"""Parameters that are sent where they are set, most to a pool alone."""


def _common(model: str, sampling: Sampling, request_id: str) -> dict[str, Any]:
    body = {"model": model, "request_id": request_id, "return_token_ids": True}
    return body | _sampled(sampling)


def _sampled(sampling: Sampling) -> dict[str, Any]:
    body = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "seed": sampling.seed,
        "skip_special_tokens": False,
    }
    return body | {name: value for name in _WHERE_SET if (value := getattr(sampling, name))}


def read_completion(
    payload: bytes,
    decode: Callable[[Sequence[int]], str] | None = None,
    *,
    sampling: Sampling,
) -> Response:
    """Read a completion; `decode` makes the text, of all tokens but the one that ended it.

    Raises EngineError if the answer is not a completion with token ids and logprobs, or if these cannot be
    what was asked for.
    """
    choice = _only_choice(read_answer(ANSWER, payload).choices)
    token_ids, logprobs, finish_reason = _checked(choice, sampling)
    text, spans = choice.text, _spans(choice, len(token_ids))
    if decode is not None and isinstance(choice.stop_reason, str):
        size, text = _until_stop(token_ids, decode, sampling.stop)
        token_ids, logprobs, spans = token_ids[:size], logprobs[:size], _first(spans, size)
    elif decode is not None:  # what the environment reads is what the trainer learns from
        text = decode(token_ids[:-1] if finish_reason == "stop" else token_ids)
    if text is None:
        raise EngineError("the server's answer has no text")
    return Response(token_ids, logprobs, text, finish_reason, choice.prompt_token_ids or (), spans)


def _until_stop(
    token_ids: Sequence[int], decode: Callable[[Sequence[int]], str], stops: Sequence[str]
) -> tuple[int, str]:
    """Return how many tokens there are up to the end of a stop string, and the text before it.

    A pool's engine may have sampled some more before it was told.
    """
    size, text = len(token_ids), decode(token_ids)
    while size > 1 and any(stop in (shorter := decode(token_ids[: size - 1])) for stop in stops):
        size, text = size - 1, shorter
    return size, text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def _first(spans: Sequence[TokenSpan], size: int) -> tuple[TokenSpan, ...]:
    """Return the spans of the first `size` tokens."""
    kept = list[TokenSpan]()
    for span in spans:
        left = size - sum(before.tokens for before in kept)
        if left > 0:
            kept.append(replace(span, tokens=min(span.tokens, left)))
    return tuple(kept)


def read_packed(payload: bytes, decode: Callable[[Sequence[int]], str], *, sampling: Sampling) -> Response:
    """Read the one frame of a response that was sent whole. Raises EngineError."""
    try:
        (frame,) = packed.PackedFrames().feed(payload)
        choice = packed.unpack(frame)
    except ValueError as error:
        raise EngineError(f"the server's answer is not a whole frame: {error}") from error
    token_ids, logprobs, finish_reason = _checked(choice, sampling)
    text = decode(token_ids[:-1] if finish_reason == "stop" else token_ids)
    return Response(token_ids, logprobs, text, finish_reason, choice.prompt_token_ids or ())


def read_chat_completion(
    payload: bytes, decode: Callable[[Sequence[int]], str], *, sampling: Sampling
) -> Response:
    """Like `read_completion`; the text is decoded here, since a server's reasoning parser splits it."""
    answer = read_answer(ANSWER, payload)
    choice = _only_choice(answer.choices)
    token_ids, logprobs, finish_reason = _checked(choice, sampling)
    if not answer.prompt_token_ids:
        raise EngineError("the server's answer has no prompt_token_ids")
    spans = _spans(choice, len(token_ids))
    return Response(token_ids, logprobs, decode(token_ids), finish_reason, answer.prompt_token_ids, spans)


def _spans(choice: EngineChoice, size: int) -> tuple[TokenSpan, ...]:
    """Return how many tokens each engine made. Raises EngineError if that is not all of them in order."""
    spans = choice.weight_versions
    starts = [*(span.start for span in spans), size]
    counts = [end - start for start, end in pairwise(starts)]
    if spans and (starts[0] != 0 or min(counts) < 0):
        raise EngineError(f"the server's weight_versions begin at {starts[:-1]} of {starts[-1]} tokens")
    return tuple(
        TokenSpan(count, span.weight_version, span.engine_id)
        for span, count in zip(spans, counts, strict=True)
        if count or len(spans) == 1
    )


def read_tokens(payload: bytes) -> tuple[int, ...]:
    """Read an answer of `/tokenize`. Raises EngineError if it is none."""
    return read_answer(_TOKENS, payload).tokens


def read_served_model(payload: bytes) -> ServedModel:
    """Return the base model of a server (adapters follow it). Raises EngineError if there is none."""
    cards = read_answer(_MODEL_LIST, payload).data
    if not cards:
        raise EngineError("the server lists no model at /v1/models")
    card = cards[0]
    return ServedModel(
        card.id, card.root, card.max_model_len, card.weight_version, is_pool=card.owned_by == POOL_OWNER
    )


def read_started_on(payload: bytes) -> str | None:
    """Read from SGLang's `/model_info` which folder's tokenizer serves: it stays when weights of another
    come.

    None for a server that has taken none: its tokenizer may be of another folder. Raises EngineError.
    """
    model = read_answer(_SGLANG_MODEL, payload)
    return model.tokenizer_path if model.weight_version not in (None, "default") else None


def read_pressure(text: str) -> EnginePressure:
    """Sums `vllm:num_requests_*` over engines. Raises EngineError if the server does not report them.

    Data-parallel ranks declare them from the start, and give a value with their first request.
    """
    if "vllm:num_requests_running" not in text:
        raise EngineError("the server reports no vllm:num_requests_running at /metrics")
    counts = {"running": 0, "waiting": 0}
    for state, value in _PRESSURE_LINE.findall(text):
        if (count := read_gauge(value)) is None:
            raise EngineError(f"the server reports {value[:40]!r} requests {state} at /metrics")
        counts[state] += int(count)
    return EnginePressure(counts["running"], counts["waiting"])


def read_gauge(text: str) -> float | None:
    """Return a value of Prometheus text that counts something; None if it cannot."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= MAX_LOAD else None


def read_answer(decoder: "Decoder[T]", payload: bytes) -> T:
    """Read a server's answer. Raises EngineError for one that has another form."""
    try:
        return decoder.decode(payload)
    except UNREADABLE as error:
        raise EngineError(f"the server's answer cannot be read: {error}") from error


def _only_choice(choices: tuple[T, ...]) -> T:
    if len(choices) != 1:
        raise EngineError(f"the server's answer has {len(choices)} choices; one was requested")
    return choices[0]


def _checked(choice: EngineChoice, sampling: Sampling) -> tuple[tuple[int, ...], tuple[float, ...], str]:
    """Return the tokens, logprobs and finish of a whole response. Raises EngineError."""
    token_ids, finish_reason = choice.token_ids, choice.finish_reason
    logprobs = choice.logprobs.values if choice.logprobs else None
    if token_ids is None or logprobs is None or finish_reason is None:
        raise EngineError("the server's answer lacks token_ids, logprobs or finish_reason")
    if flaw := flaw_of(token_ids, logprobs, sampling.vocab_size):
        raise EngineError(f"the server sent {flaw}")
    if len(token_ids) > sampling.max_tokens:
        raise EngineError(f"the server sent {len(token_ids)} tokens, {sampling.max_tokens} were requested")
    if finish_reason not in (*FINISHED, ABORTED):
        raise EngineError(
            f"the server ended a response for the reason {finish_reason[:40]!r}, which is unknown"
        )
    if not token_ids and finish_reason != ABORTED:
        raise EngineError("the server sent a response without a token")
    return token_ids, logprobs, finish_reason
