"""Completions as vLLM writes them, whole or in the events of a stream. Pure.

Tests in `tests/integration/pool/openai` compare each field with a real vLLM's. One differs: there is no
`system_fingerprint`, for a response may come of several engines.
"""

import secrets
import time
from collections.abc import Sequence
from itertools import accumulate, count
from typing import Any

from msgspec.json import encode

from rl_agent.pool.api.openai_schemas import Call, CompletionCall
from rl_agent.pool.scheduler.migration import held_back
from rl_agent.pool.scheduler.records import Request

DONE = b"data: [DONE]\n\n"
_START = secrets.token_hex(8)
_NUMBERS = count(1)


def unique() -> str:
    """Return a name that was never given before, not by another manager either."""
    return f"{_START}-{next(_NUMBERS)}"


def completion_body(call: CompletionCall, model: str, ended: list[Request], texts: list[str]) -> bytes:
    """Return the body of the answer of `/v1/completions`."""
    choices = [
        _choice(call, request, (0, len(request.token_ids)), text, 0)
        | {
            "index": index,
            "prompt_token_ids": list(prompt_of(request)) if call.return_token_ids else None,
            "prompt_logprobs": None,
            "routed_experts": None,
        }
        for index, (request, text) in enumerate(zip(ended, texts, strict=True))
    ]
    num_tokens = sum(len(request.token_ids) for request in ended)
    usage = whole(sum(len(prompt_of(request)) for request in ended[:: call.n]), num_tokens)
    return encode(_base(call, model) | usage | {"choices": choices})


class CompletionEvents:
    """The events of one streamed completion: pieces, the usage if it was asked for, the end."""

    def __init__(self, call: CompletionCall, model: str, prompt: tuple[int, ...]) -> None:
        self._asked = call
        self._prompt = prompt
        self._base = _base(call, model)
        self._holds = held_back(call.params)
        self._has_begun = False
        self._held = ""
        """Text that may be the beginning of a stop string."""
        self._read_texts = 0
        self._sent_tokens = 0
        self._sent_characters = 0

    def is_worth_showing(self, request: Request) -> bool:
        """Tell whether a growing response has enough for an event: one token, then `stream_interval` each."""
        new = len(request.token_ids) - self._sent_tokens
        return new >= (self._asked.stream_interval if self._has_begun else 1)

    def grown(self, request: Request) -> bytes:
        """Return the event of what is new in a response that goes on."""
        held = self._held + "".join(request.texts[self._read_texts :])
        shown = held[: max(0, len(held) - self._holds)]
        self._held, self._read_texts = held[len(shown) :], len(request.texts)
        return self._piece(request, shown)

    def end(self, request: Request, text: str) -> bytes:
        """Return the last events of the response whose text this is."""
        written = self._piece(request, text[self._sent_characters :])
        if self._asked.includes_usage:
            usage = usage_of(len(self._prompt), self._sent_tokens)
            written += event_of(self._base | {"choices": [], "usage": usage})
        return written + DONE

    def _piece(self, request: Request, text: str) -> bytes:
        num_tokens = len(request.token_ids)
        choice = _choice(self._asked, request, (self._sent_tokens, num_tokens), text, self._sent_characters)
        is_first, self._has_begun = not self._has_begun, True
        self._prompt = request.seen_prompt or self._prompt
        choice["prompt_token_ids"] = list(self._prompt) if is_first and self._asked.return_token_ids else None
        self._sent_tokens, self._sent_characters = num_tokens, self._sent_characters + len(text)
        return event_of(self._base | {"choices": [choice]})


def prompt_of(request: Request) -> tuple[int, ...]:
    """Return the prompt as the model saw it."""
    return request.seen_prompt or request.order.prompt_token_ids


def event_of(content: dict[str, Any]) -> bytes:
    return b"data: " + encode(content) + b"\n\n"


def usage_of(prompt: int, tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}


def whole(prompt: int, tokens: int) -> dict[str, Any]:
    """Return the fields of an answer that a stream has not."""
    details = {"prompt_tokens_details": None, "completion_tokens_details": None}
    absent = ("service_tier", "system_fingerprint", "kv_transfer_params", "ec_transfer_params", "metrics")
    return dict.fromkeys(absent) | {"usage": usage_of(prompt, tokens) | details}


def versions_of(request: Request) -> list[dict[str, Any]]:
    """Return which engine and weight version made the tokens from each `start` on."""
    return [
        {"start": span.start, "engine_id": span.engine_id, "weight_version": span.weight_version}
        for span in request.spans
    ]


def names_of(call: Call, request: Request, start: int, end: int) -> Sequence[str]:
    """Return the names of tokens; none where nobody needs them."""
    if not call.needs_names:
        return ()
    if call.return_tokens_as_token_ids:
        return [f"token_id:{token}" for token in request.token_ids[start:end]]
    return request.names[start:end]


def _choice(
    call: CompletionCall, request: Request, part: tuple[int, int], text: str, offset: int
) -> dict[str, Any]:
    start, end = part
    choice: dict[str, Any] = {
        "index": 0,
        "text": text,
        "logprobs": None,
        "finish_reason": request.finish_reason or None,
        "stop_reason": request.stop_reason,
        "token_ids": list(request.token_ids[start:end]) if call.return_token_ids else None,
    }
    if call.wants_logprobs:
        logprobs, names = list(request.logprobs[start:end]), names_of(call, request, start, end)
        choice["logprobs"] = {
            "text_offset": list(accumulate(map(len, names[:-1]), initial=offset)) if names else [],
            "token_logprobs": logprobs,
            "tokens": list(names),
            "top_logprobs": [{name: value} for name, value in zip(names, logprobs, strict=False)],
        }
    if call.return_token_ids:
        choice["weight_versions"] = versions_of(request)
    return choice


def _base(call: CompletionCall, model: str) -> dict[str, Any]:
    name = call.request_id or unique()
    return {"id": f"cmpl-{name}", "object": "text_completion", "created": int(time.time()), "model": model}
