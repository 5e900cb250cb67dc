"""What is said to an inference server over HTTP, and what it answers. Pure: bytes in, values out.

Requests state every sampling parameter: vLLM fills what is missing from the model's own
`generation_config.json`, and a penalty that slipped in there would not be in the recorded behaviour.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_json

from rl_agent.errors import EngineError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next response is drawn."""

    temperature: float
    top_p: float
    top_k: int
    """-1: all tokens."""
    min_p: float
    max_tokens: int
    seed: int
    min_weight_version: int = 0
    """Of the engine that draws it; asked of a pool alone."""
    expected_tokens: int = 0
    """How long it is likely to be, if that is known; told to a pool alone."""
    group: str = ""
    """Responses to what began alike, as siblings' do; told to a pool alone."""
    episode: str = ""
    """Whose turn it is, where all turns of one are to be of one weight version; told to a pool alone."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What `/v1/models` says a server holds."""

    id: str
    root: str
    """The folder or hub name it was loaded from."""
    max_model_len: int
    """Tokens of prompt and response together."""
    weight_version: int | None = None
    """Only a pool says it."""


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
    """Of the model itself, before temperature, top-p and the like (vLLM's default `raw_logprobs`)."""
    text: str
    """The decoded response without the token that ended it; special tokens inside it are kept."""
    finish_reason: str
    """`stop` or `length`; `abort` where the server itself ended the request."""
    prompt_token_ids: tuple[int, ...] = ()
    """Only where the server rendered the prompt: a chat request."""
    weight_versions: tuple[int, int] | None = None
    """Lowest and highest that made a token; only a pool says it."""


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class _Logprobs(_Answer):
    token_logprobs: tuple[float, ...]


class _Span(_Answer):
    weight_version: int


class _Choice(_Answer):
    text: str
    token_ids: tuple[int, ...]
    logprobs: _Logprobs
    finish_reason: str
    weight_versions: tuple[_Span, ...] = ()


class _Completion(_Answer):
    choices: tuple[_Choice, ...]


class _ChatLogprob(_Answer):
    logprob: float


class _ChatLogprobs(_Answer):
    content: tuple[_ChatLogprob, ...]


class _ChatChoice(_Answer):
    token_ids: tuple[int, ...]
    logprobs: _ChatLogprobs
    finish_reason: str
    weight_versions: tuple[_Span, ...] = ()


class _ChatCompletion(_Answer):
    prompt_token_ids: tuple[int, ...]
    choices: tuple[_ChatChoice, ...]


class _ModelCard(_Answer):
    id: str
    root: str
    max_model_len: int
    weight_version: int | None = None


class _ModelList(_Answer):
    data: tuple[_ModelCard, ...]


class _SglangModel(_Answer):
    tokenizer_path: str | None = None
    weight_version: str | None = None


_COMPLETION = TypeAdapter(_Completion)
_CHAT_COMPLETION = TypeAdapter(_ChatCompletion)
_MODEL_LIST = TypeAdapter(_ModelList)
_SGLANG_MODEL = TypeAdapter(_SglangModel)
_PRESSURE_LINE = re.compile(r"^vllm:num_requests_(running|waiting)(?:\{[^}]*\})? (\S+)", re.MULTILINE)


def completion_request(
    model: str,
    prompt_token_ids: Sequence[int],
    sampling: Sampling,
    request_id: str,
    *,
    needs_text: bool = True,
) -> bytes:
    """Body of `POST /v1/completions`: token ids in, token ids out; a pool may leave the text away."""
    # logprobs=0 is the sampled token's alone; 1 would add the likeliest one to every position.
    body = _common(model, sampling, request_id) | {"prompt": list(prompt_token_ids), "logprobs": 0}
    return to_json(body if needs_text else body | {"detokenize": False})


def chat_request(
    model: str,
    messages: Sequence[dict[str, Any]],
    sampling: Sampling,
    request_id: str,
    chat_template_kwargs: dict[str, Any],
) -> bytes:
    """Body of `POST /v1/chat/completions`: for prompts with images, which only the server can tokenise."""
    body = _common(model, sampling, request_id) | {
        "messages": list(messages),
        "chat_template_kwargs": chat_template_kwargs,
        "logprobs": True,
        "top_logprobs": 0,
    }
    return to_json(body)


def _common(model: str, sampling: Sampling, request_id: str) -> dict[str, Any]:
    return {
        "model": model,
        "request_id": request_id,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "seed": sampling.seed,
        "return_token_ids": True,
        "skip_special_tokens": False,
        # Only a pool knows these.
        **({"min_weight_version": sampling.min_weight_version} if sampling.min_weight_version else {}),
        **({"expected_tokens": sampling.expected_tokens} if sampling.expected_tokens else {}),
        **({"group": sampling.group} if sampling.group else {}),
        **({"episode": sampling.episode} if sampling.episode else {}),
    }


def read_completion(payload: bytes, decode: Callable[[Sequence[int]], str] | None = None) -> Response:
    """Without a text in the answer `decode` makes it, of all tokens but the one that ended the response.

    Raises EngineError if the answer is not a completion with token ids and logprobs.
    """
    choice = _only_choice(_validate(_COMPLETION, payload).choices)
    text = choice.text
    if not text and decode is not None:
        text = decode(choice.token_ids[:-1] if choice.finish_reason == "stop" else choice.token_ids)
    response = _checked(choice.token_ids, choice.logprobs.token_logprobs, text, choice.finish_reason)
    return replace(response, weight_versions=_range(choice.weight_versions))


def read_chat_completion(payload: bytes, decode: Callable[[Sequence[int]], str]) -> Response:
    """Like `read_completion`; the text is decoded here, since a server's reasoning parser splits it."""
    answer = _validate(_CHAT_COMPLETION, payload)
    choice = _only_choice(answer.choices)
    logprobs = tuple(token.logprob for token in choice.logprobs.content)
    response = _checked(choice.token_ids, logprobs, decode(choice.token_ids), choice.finish_reason)
    versions = _range(choice.weight_versions)
    return replace(response, prompt_token_ids=answer.prompt_token_ids, weight_versions=versions)


def _range(spans: tuple[_Span, ...]) -> tuple[int, int] | None:
    versions = [span.weight_version for span in spans]
    return (min(versions), max(versions)) if versions else None


def read_served_model(payload: bytes) -> ServedModel:
    """The base model of a server (adapters follow it). Raises EngineError if there is none."""
    cards = _validate(_MODEL_LIST, payload).data
    if not cards:
        raise EngineError("the server lists no model at /v1/models")
    return ServedModel(cards[0].id, cards[0].root, cards[0].max_model_len, cards[0].weight_version)


def read_started_on(payload: bytes) -> str | None:
    """From SGLang's `/model_info`: the tokenizer stays where it was when weights of another folder come.

    None for a server that has taken none: its tokenizer may be of another folder. Raises EngineError.
    """
    model = _validate(_SGLANG_MODEL, payload)
    return model.tokenizer_path if model.weight_version not in (None, "default") else None


def read_pressure(text: str) -> EnginePressure:
    """Sums `vllm:num_requests_*` over engines. Raises EngineError if the server does not report them.

    Data-parallel ranks declare them from the start, and give a value with their first request.
    """
    counts = {"running": 0.0, "waiting": 0.0}
    for state, value in _PRESSURE_LINE.findall(text):
        counts[state] += float(value)
    if "vllm:num_requests_running" not in text:
        raise EngineError("the server reports no vllm:num_requests_running at /metrics")
    return EnginePressure(int(counts["running"]), int(counts["waiting"]))


def _validate(adapter: TypeAdapter[T], payload: bytes) -> T:
    try:
        return adapter.validate_json(payload)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise EngineError(f"the server's answer has no usable {where}: {first['msg']}") from error


def _only_choice(choices: tuple[T, ...]) -> T:
    if len(choices) != 1:
        raise EngineError(f"the server's answer holds {len(choices)} responses; one was asked for")
    return choices[0]


def _checked(
    token_ids: tuple[int, ...], logprobs: tuple[float, ...], text: str, finish_reason: str
) -> Response:
    if len(token_ids) != len(logprobs):
        raise EngineError(f"the server sent {len(token_ids)} token ids with {len(logprobs)} logprobs")
    return Response(token_ids, logprobs, text, finish_reason)
