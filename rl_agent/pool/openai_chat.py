"""Chat completions out of responses, whole or in pieces while they grow. Pure.

An engine says what tokens mean (reasoning, content, tool calls: `derender`), of a half response as if it had
been cut off there. A piece is what is new of that. What the end might still change is held back: half a
character, white space, what may be the beginning of a stop string, and where there are tools all from the
first character on that may begin a call. Tool calls come whole, at the end.
"""

import secrets
import time
from typing import Any

from pydantic_core import to_json

from rl_agent.pool.continuation import stop_strings
from rl_agent.pool.openai_wire import Asked, usage_of
from rl_agent.pool.records import Request
from rl_agent.pool.results import spans_of
from rl_agent.pool.text import said_tokens

DERENDER = "/v1/chat/completions/derender"
TEXTS = ("reasoning", "reasoning_content", "content")
CALL_BEGINS = "<[{"
"""With one of these, in every format of tool calls that engines know."""
GROWTH = 16
"""A piece is asked for when a response has grown by this part of it: each is read from its beginning."""


def derender_body(request: Request, chat: dict[str, Any], model: str, prompt_tokens: int) -> dict[str, Any]:
    """What an engine is asked; where it looks for tool calls, it shows the special tokens too."""
    said = list(request.token_ids) if request.is_open else said_tokens(request)
    choice = {"index": 0, "token_ids": said or [0], "finish_reason": request.finish_reason or None}
    generated = {"choices": [choice], "model": model}
    return {"generate_response": generated, "prompt_tokens": prompt_tokens, "chat_request": chat}


def message_of(answer: dict[str, Any], request: Request) -> dict[str, Any]:
    """The message, without what nobody is to see: a stop string, or what stands for no token at all."""
    message: dict[str, Any] = answer["choices"][0]["message"]
    content = message.get("content") or ""
    if not request.is_open and not said_tokens(request):
        message["content"] = ""
    elif isinstance(stop := request.stop_reason, str) and (at := content.find(stop)) >= 0:
        is_kept = request.order.params.get("include_stop_str_in_output")
        message["content"] = content[: at + len(stop) if is_kept else at]
    return message


def choice_of(request: Request, message: dict[str, Any], asked: Asked, index: int) -> dict[str, Any]:
    return {
        "index": index,
        "message": message,
        "finish_reason": _finish_of(request, message),
        "stop_reason": request.stop_reason,
        "token_ids": list(request.token_ids),
        "logprobs": _logprobs(request, 0, len(request.token_ids)) if asked.wants_logprobs else None,
        "weight_versions": [span.model_dump() for span in spans_of(request)],
    }


def chat_body(
    asked: Asked,
    model: str,
    choices: list[dict[str, Any]],
    ended: list[Request],
    prompt: tuple[int, ...],
) -> dict[str, Any]:
    """The answer of `/v1/chat/completions`."""
    made = sum(len(one.token_ids) for one in ended)
    body = _base(model, "chat.completion") | {"choices": choices, "usage": usage_of(len(prompt), made)}
    return body | ({"prompt_token_ids": list(prompt)} if asked.wants_token_ids else {})


class ChatEvents:
    """The events of one streamed chat: role, pieces, finish, usage if it was asked for, the end."""

    def __init__(self, asked: Asked, model: str, prompt: tuple[int, ...], *, has_tools: bool) -> None:
        self._asked = asked
        self._prompt = prompt
        self._has_tools = has_tools
        self._holds = max(map(len, stop_strings(asked.params)), default=1) - 1
        self._base = _base(model, "chat.completion.chunk")
        self._shown: dict[str, str] = {}
        self._has_begun = False
        self._looked_at = 0
        self._sent_tokens = 0

    def is_worth_showing(self, request: Request) -> bool:
        return len(request.token_ids) - self._looked_at > self._looked_at // GROWTH

    def piece(self, request: Request, message: dict[str, Any], made: int) -> bytes:
        """What the first `made` tokens of a response that goes on have brought; empty if nothing is sure."""
        self._looked_at = made
        new = self._new({name: self._sure(name, message.get(name) or "") for name in TEXTS})
        return self._deltas(request, new, made) if new else b""

    def end(self, request: Request, message: dict[str, Any]) -> bytes:
        """All that is left."""
        delta: dict[str, Any] = self._new({name: message.get(name) or "" for name in TEXTS})
        if calls := message.get("tool_calls"):
            delta["tool_calls"] = [call | {"index": index} for index, call in enumerate(calls)]
        made = len(request.token_ids)
        written = self._deltas(request, delta, made) if delta or made > self._sent_tokens else b""
        finish = {"index": 0, "delta": {}, "finish_reason": _finish_of(request, message)}
        written += self._event([finish | {"stop_reason": request.stop_reason}])
        if self._asked.includes_usage:
            written += self._event([], usage_of(len(self._prompt), made))
        return written + b"data: [DONE]\n\n"

    def _sure(self, name: str, text: str) -> str:
        if name == "content":
            text = text[: max(0, len(text) - self._holds)]
            if self._has_tools:
                text = text[: min((at for c in CALL_BEGINS if (at := text.find(c)) >= 0), default=len(text))]
        return text.rstrip("\ufffd").rstrip()

    def _new(self, texts: dict[str, str]) -> dict[str, Any]:
        """What was shown is not taken back, should an engine ever change its mind."""
        new: dict[str, Any] = {}
        for name, text in texts.items():
            shown = self._shown.get(name, "")
            if len(text) > len(shown) and text.startswith(shown):
                new[name], self._shown[name] = text[len(shown) :], text
        return new

    def _deltas(self, request: Request, delta: dict[str, Any], made: int) -> bytes:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": None}
        choice["token_ids"] = list(request.token_ids[self._sent_tokens : made])
        if self._asked.wants_logprobs:
            choice["logprobs"] = _logprobs(request, self._sent_tokens, made)
        self._sent_tokens = made
        role = b""
        if not self._has_begun:
            self._has_begun = True
            begin: dict[str, Any] = {"index": 0, "finish_reason": None}
            begin["delta"] = {"role": "assistant", "content": ""}
            if self._asked.wants_token_ids:
                begin["prompt_token_ids"] = list(self._prompt)
            role = self._event([begin])
        return role + self._event([choice])

    def _event(
        self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None, **more: Any
    ) -> bytes:
        event = self._base | {"choices": choices} | more
        if self._asked.includes_usage:
            event["usage"] = usage
        return b"data: " + to_json(event) + b"\n\n"


def _finish_of(request: Request, message: dict[str, Any]) -> str:
    is_call = bool(message.get("tool_calls")) and request.finish_reason == "stop"
    return "tool_calls" if is_call else request.finish_reason


def _logprobs(request: Request, start: int, end: int) -> dict[str, Any]:
    pairs = zip(request.token_ids[start:end], request.logprobs[start:end], strict=True)
    content: list[dict[str, Any]] = [
        {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in pairs
    ]
    return {"content": content}


def _base(model: str, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{secrets.token_hex(8)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": model}
