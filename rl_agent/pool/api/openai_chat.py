"""Makes chat completions of responses, whole or in pieces while they grow. Pure.

An engine says what tokens mean (reasoning, content, tool calls: `derender`), of a half response as if it had
been cut off there. A piece is what is new of that. What the end might still change is held back: half a
character, white space, what may be the beginning of a stop string, and where there are tools all from the
first character on that may begin a call. Tool calls come whole, at the end.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from msgspec.json import encode

from rl_agent.pool.api.openai_answers import DONE, event_of, names_of, prompt_of, usage_of, versions_of, whole
from rl_agent.pool.api.openai_schemas import ChatCall
from rl_agent.pool.engines.answers import WrongAnswer
from rl_agent.pool.scheduler.migration import held_back
from rl_agent.pool.scheduler.records import Request

DERENDER = "/v1/chat/completions/derender"
TEXTS = ("reasoning", "reasoning_content", "content")
CALL_BEGINS = "<[{"
"""A tool call begins with one of these, in every format that engines know."""
CALL_ID = "chatcmpl-tool-"
GROWTH = 16
"""A piece is asked for when a response has grown by this part of it: each is read from its beginning."""


def derender_body(
    request: Request, tokens: Sequence[int], chat: dict[str, Any], model: str
) -> dict[str, Any]:
    """Ask what these tokens say; an engine that looks for tool calls shows the special tokens too."""
    choice = {
        "index": 0,
        "token_ids": list(tokens) or [0],
        "finish_reason": request.finish_reason or None,
    }
    generated = {"choices": [choice], "model": model}
    return {
        "generate_response": generated,
        "prompt_tokens": len(request.order.prompt_token_ids),
        "chat_request": chat,
    }


def message_of(
    answer: dict[str, Any], request: Request, tokens: Sequence[int], chat: ChatCall
) -> dict[str, Any]:
    """Return the message without half a character at its end, and without what stands for no token.

    Raises WrongAnswer if the engine's answer holds no message.
    """
    message = _read_message(answer) | {"role": chat.role}
    if calls := message.get("tool_calls"):
        calls = calls if chat.parallel_tool_calls else calls[:1]
        message["tool_calls"] = [call | {"id": _call_id(call.get("id"))} for call in calls]
    if request.is_open:
        return message
    if not tokens:
        return message | {"content": ""}
    last = "content" if message.get("content") else "reasoning"
    if text := message.get(last):
        message[last] = text.rstrip("\ufffd")
    return message


def _call_id(name: Any) -> str:
    """Return the id of a tool call in the form that vLLM gives it."""
    return str(name) if str(name).startswith(CALL_ID) else f"{CALL_ID}{name}"


def _read_message(answer: dict[str, Any]) -> dict[str, Any]:
    try:
        message = answer["choices"][0]["message"]
        is_message = all(isinstance(message.get(name) or "", str) for name in TEXTS)
        calls = message.get("tool_calls") or []
        is_message &= isinstance(calls, list) and all(isinstance(call, dict) for call in calls)
    except (LookupError, TypeError, AttributeError):
        is_message = False
    if not is_message:
        raise WrongAnswer(f"{DERENDER} gave no message")
    return dict(message)


def cut_at_stop(text: str, request: Request) -> str:
    """Return the text up to the stop string that ended it, and that too if it is to be shown."""
    stop = request.stop_reason
    end = len(text) - request.cut_characters
    if request.order.params.get("include_stop_str_in_output"):
        return text[:end] if text[:end].endswith(str(stop)) else text
    return text[:end] if text.startswith(str(stop), end) else text


def chat_body(call: ChatCall, model: str, ended: list[Request], messages: list[dict[str, Any]]) -> bytes:
    """Return the body of the answer of `/v1/chat/completions`."""
    choices = [
        {
            "index": index,
            "message": message,
            "logprobs": _logprobs(call, request, 0, len(request.token_ids)),
            "finish_reason": _finish_of(call, request, message),
            "stop_reason": request.stop_reason,
            "token_ids": list(request.token_ids) if call.return_token_ids else None,
            "routed_experts": None,
        }
        | ({"weight_versions": versions_of(request)} if call.return_token_ids else {})
        for index, (request, message) in enumerate(zip(ended, messages, strict=True))
    ]
    num_tokens = sum(len(request.token_ids) for request in ended)
    prompt = prompt_of(ended[0])
    return encode(
        _base(call, model, "chat.completion")
        | whole(len(prompt), num_tokens)
        | {"choices": choices, "prompt_logprobs": None, "prompt_text": None}
        | {"prompt_token_ids": list(prompt) if call.return_token_ids else None}
    )


class ChatEvents:
    """The events of one streamed chat: the role, pieces, the usage if it was asked for, the end."""

    def __init__(self, call: ChatCall, model: str, prompt: tuple[int, ...], *, has_tools: bool) -> None:
        self._asked = call
        self._prompt = prompt
        self._has_tools = has_tools
        self._holds = held_back(call.params)
        self._base = _base(call, model, "chat.completion.chunk")
        self._shown: dict[str, str] = {}
        self._has_begun = False
        self._looked_at = 0
        self._sent_tokens = 0

    def is_worth_showing(self, request: Request) -> bool:
        new = len(request.token_ids) - self._looked_at
        return new > self._looked_at // GROWTH and (new >= self._asked.stream_interval or not self._looked_at)

    def piece(self, request: Request, message: dict[str, Any], tokens: int) -> bytes:
        """Return the event that the first `tokens` tokens add; empty while none of it is certain."""
        self._looked_at = tokens
        new = self._new({name: self._sure(name, message) for name in TEXTS})
        return self._events(request, new, tokens, {"finish_reason": None}) if new else b""

    def end(self, request: Request, message: dict[str, Any]) -> bytes:
        """Return the last events: all that is left, and the finish."""
        delta: dict[str, Any] = self._new({name: message.get(name) or "" for name in TEXTS})
        if calls := message.get("tool_calls"):
            delta["tool_calls"] = [call | {"index": index} for index, call in enumerate(calls)]
        num_tokens = len(request.token_ids)
        finish: dict[str, Any] = {"finish_reason": _finish_of(self._asked, request, message)}
        finish["stop_reason"] = request.stop_reason
        if self._asked.return_token_ids:
            finish["weight_versions"] = versions_of(request)
        written = self._events(request, delta or {"content": ""}, num_tokens, finish)
        if self._asked.includes_usage:
            usage = usage_of(len(self._prompt), num_tokens)
            written += event_of(self._base | {"choices": [], "usage": usage})
        return written + DONE

    def _sure(self, name: str, message: dict[str, Any]) -> str:
        text = message.get(name) or ""
        if name == "content" or not message.get("content"):  # it may still grow
            text = text[: max(0, len(text) - self._holds)]
        if name == "content" and self._has_tools:
            text = text[: min((at for c in CALL_BEGINS if (at := text.find(c)) >= 0), default=len(text))]
        return text.rstrip("\ufffd").rstrip()

    def _new(self, texts: dict[str, str]) -> dict[str, Any]:
        """Return the text that was not shown yet; what was shown is never taken back."""
        new: dict[str, Any] = {}
        for name, text in texts.items():
            shown = self._shown.get(name, "")
            if len(text) > len(shown) and text.startswith(shown):
                new[name], self._shown[name] = text[len(shown) :], text
        return new

    def _events(self, request: Request, delta: dict[str, Any], end: int, finish: dict[str, Any]) -> bytes:
        start, self._sent_tokens = self._sent_tokens, end
        self._prompt = request.seen_prompt or self._prompt
        choice: dict[str, Any] = {
            "index": 0,
            "delta": delta,
            "logprobs": _logprobs(self._asked, request, start, end),
            "token_ids": list(request.token_ids[start:end]) if self._asked.return_token_ids else None,
        }
        event = self._base | {"choices": [choice | finish]}
        return self._begin() + event_of(event)

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        delta = {"role": self._asked.role, "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        prompt = list(self._prompt) if self._asked.return_token_ids else None
        top = {"choices": [choice], "prompt_token_ids": prompt, "prompt_text": None}
        return event_of(self._base | top)


def _finish_of(call: ChatCall, request: Request, message: dict[str, Any]) -> str:
    """Return the finish, which is that of the tokens where a call of a tool was forced and has come."""
    is_forced = isinstance(call.tool_choice, dict)
    return "tool_calls" if message.get("tool_calls") and not is_forced else request.finish_reason


def _logprobs(call: ChatCall, request: Request, start: int, end: int) -> dict[str, Any] | None:
    """Return the sampled tokens' logprobs; bytes are of a token's text, also where it is named by its id."""
    if not call.wants_logprobs:
        return None
    names = names_of(call, request, start, end)
    parts = zip(names, request.names[start:end], request.logprobs[start:end], strict=True)
    content: list[dict[str, Any]] = [
        {
            "token": name,
            "logprob": logprob,
            "bytes": list(text.encode("utf-8", "replace")),
            "top_logprobs": [],
        }
        for name, text, logprob in parts
    ]
    return {"content": content}


def _base(call: ChatCall, model: str, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{call.request_id or secrets.token_hex(8)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": model}
