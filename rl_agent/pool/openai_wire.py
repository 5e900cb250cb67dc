"""Reading OpenAI requests and writing completions as vLLM writes them. Pure."""

import secrets
import time
from dataclasses import dataclass
from itertools import count
from typing import Any

from msgspec.json import encode

from rl_agent.pool.problem import problem
from rl_agent.pool.records import Request
from rl_agent.pool.sampling import check_sampling
from rl_agent.pool.wire import LONGEST_S, MAX_PROMPT_TOKENS

DEFAULT_MAX_TOKENS = {False: 16, True: 4096}
"""Of a completion (as OpenAI has it) and of a chat; the model's length limits it further."""
_HANDLED = frozenset(
    {
        "model",
        "messages",
        "prompt",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "chat_template_kwargs",
        "add_generation_prompt",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "stream",
        "stream_options",
        "stream_interval",
        "logprobs",
        "top_logprobs",
        "return_token_ids",
        "request_id",
        "user",
        "metadata",
        "store",
        "timeout_s",
        "min_weight_version",
        "expected_tokens",
        "group",
        "episode",
        "vocab_size",
        "detokenize",
        "echo",
        "best_of",
        "suffix",
        "response_format",
    }
)
_REFUSED: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
}
"""What the pool cannot do, with the values that ask for nothing."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of the OpenAI API."""

    prompt_token_ids: tuple[int, ...]
    prompt_text: str
    messages: list[Any] | None
    wanted_tokens: int
    n: int
    stream: bool
    wants_logprobs: bool
    wants_token_ids: bool
    includes_usage: bool
    timeout_s: float | None
    min_weight_version: int
    expected_tokens: int | None
    group: str | None
    """Of requests that begin alike: kept on one engine while that helps, and like each other in length."""
    episode: str
    """Whose turn this is: all turns of one are to be of one weight version."""
    vocab_size: int | None
    params: dict[str, Any]
    needs_text: bool
    """Chats do not: what the tokens say is read off them by an engine (`openai_chat`)."""


def read_asked(body: dict[str, Any], *, is_chat: bool) -> Asked:
    """Raises web.HTTPException for what the pool does not do; other parameters are the engine's to judge."""
    for name, harmless in _REFUSED.items():
        if body.get(name) is not None and body[name] not in harmless:
            raise problem(400, f"{name}={body[name]!r}: the pool does not do this; leave it out")
    n = _integer(body, "n", 1, at_least=1, at_most=256)
    stream = body.get("stream") is True
    if stream and n > 1:
        raise problem(400, "n: a stream holds one response")
    default = DEFAULT_MAX_TOKENS[is_chat]
    key = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    prompt = () if is_chat else _token_ids(body.get("prompt"))
    options = body.get("stream_options") or {}
    timeout_s = body.get("timeout_s")
    if timeout_s is not None and not (type(timeout_s) in (int, float) and 0 < timeout_s <= LONGEST_S):
        raise problem(400, "timeout_s: expected seconds")
    return Asked(
        prompt_token_ids=prompt,
        prompt_text="" if is_chat or prompt else _text(body.get("prompt")),
        messages=_messages(body) if is_chat else None,
        wanted_tokens=_integer(body, key, default, at_least=1, at_most=2**24),
        n=n,
        stream=stream,
        wants_logprobs=body.get("logprobs") is not None and body["logprobs"] is not False,
        wants_token_ids=body.get("return_token_ids") is True,
        includes_usage=isinstance(options, dict) and options.get("include_usage") is True,
        timeout_s=timeout_s,
        min_weight_version=_integer(body, "min_weight_version", 0, at_least=0, at_most=2**48),
        expected_tokens=_integer(body, "expected_tokens", 0, at_least=0, at_most=2**24) or None,
        group=_name(body, "group"),
        episode=_name(body, "episode") or "",
        vocab_size=_integer(body, "vocab_size", 0, at_least=0, at_most=2**31) or None,
        params=_params(body),
        needs_text=not is_chat and body.get("detokenize") is not False,
    )


def _params(body: dict[str, Any]) -> dict[str, Any]:
    params = {name: value for name, value in body.items() if name not in _HANDLED and value is not None}
    try:
        check_sampling(params)
    except ValueError as error:
        raise problem(400, str(error)) from None
    return params


def _integer(body: dict[str, Any], key: str, default: int, *, at_least: int, at_most: int) -> int:
    value = body.get(key)
    if value is None:
        return default
    if type(value) is not int or not at_least <= value <= at_most:
        raise problem(400, f"{key}: expected a whole number from {at_least} to {at_most}")
    return value


def _name(body: dict[str, Any], key: str) -> str | None:
    name = body.get(key)
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable()):
        raise problem(400, f"{key}: expected a name of 1 to 200 printable characters")
    return name


def _token_ids(prompt: Any) -> tuple[int, ...]:
    """Token ids, also as a list of one list; empty if the prompt is text."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list | str):
        prompt = prompt[0]
    if not isinstance(prompt, list) or not prompt:
        return ()
    if len(prompt) > MAX_PROMPT_TOKENS:
        raise problem(400, f"prompt: {len(prompt)} tokens; at most {MAX_PROMPT_TOKENS} are taken")
    if set(map(type, prompt)) != {int} or min(prompt) < 0 or max(prompt) >= 2**31:
        raise problem(400, "prompt: expected one text or one list of token ids")
    return tuple(prompt)


def _text(prompt: Any) -> str:
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise problem(400, "prompt: expected one text or one list of token ids")
    return prompt


def _messages(body: dict[str, Any]) -> list[Any]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise problem(400, "messages: expected a list of at least one message")
    return messages


def completion_body(
    asked: Asked, model: str, ended: list[Request], texts: list[str], prompt: tuple[int, ...]
) -> bytes:
    """The answer of `/v1/completions`."""
    choices = [
        _choice(asked, one, (0, len(one.token_ids), text), prompt, index=index)
        for index, (one, text) in enumerate(zip(ended, texts, strict=True))
    ]
    made = sum(len(one.token_ids) for one in ended)
    return encode(_base(model) | {"choices": choices, "usage": usage_of(len(prompt), made)})


def chunk_body(
    asked: Asked, model: str, request: Request, piece: tuple[int, int, str], prompt: tuple[int, ...]
) -> bytes:
    """One event of a streamed completion: tokens from … to …, and their text."""
    if request.failure:
        error = {"message": request.failure, "code": 502}
        return b"data: " + encode({"error": error}) + b"\n\n"
    event = _base(model, request.request_id) | {"choices": [_choice(asked, request, piece, prompt, index=0)]}
    if asked.includes_usage:
        event["usage"] = usage_of(len(prompt), piece[1])
    return b"data: " + encode(event) + b"\n\n"


def _choice(
    asked: Asked, request: Request, piece: tuple[int, int, str], prompt: tuple[int, ...], *, index: int
) -> dict[str, Any]:
    start, end, text = piece
    tokens, logprobs = list(request.token_ids[start:end]), list(request.logprobs[start:end])
    choice: dict[str, Any] = {
        "index": index,
        "text": text,
        "finish_reason": request.finish_reason or None,
        "stop_reason": request.stop_reason,
        "logprobs": None,
    }
    if asked.wants_logprobs:
        # Whoever has the token ids needs no names for them; they would be most of the bytes.
        names = [] if asked.wants_token_ids else [f"token_id:{token}" for token in tokens]
        choice["logprobs"] = {
            "token_logprobs": logprobs,
            "tokens": names,
            "top_logprobs": [{name: value} for name, value in zip(names, logprobs, strict=False)],
            "text_offset": [0] * len(names),
        }
    if asked.wants_token_ids:
        choice["token_ids"] = tokens
        choice["prompt_token_ids"] = list(prompt) if start == 0 else None
        choice["weight_versions"] = [
            {"start": span.start, "engine_id": span.engine_id, "weight_version": span.weight_version}
            for span in request.spans
        ]
    return choice


_START = secrets.token_hex(8)
_NUMBERS = count(1)


def unique() -> str:
    """Never given before, not by another manager either."""
    return f"{_START}-{next(_NUMBERS)}"


def _base(model: str, request_id: str = "") -> dict[str, Any]:
    name = request_id or unique()
    return {"id": f"cmpl-{name}", "object": "text_completion", "created": int(time.time()), "model": model}


def usage_of(prompt: int, made: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}
