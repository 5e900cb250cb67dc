"""Makes answers of OpenAI's Responses API of those to chats. Pure.

    chunks of a chat ─► created, in_progress, for each item: added, its part, deltas, done; completed

Calls of functions come whole. A whole answer is what the events of its one chunk add up to.
"""

import secrets
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec

from rl_agent.chat.responses_call import ResponsesCall

_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_ECHOED = {"parallel_tool_calls": True, "service_tier": "auto"} | dict.fromkeys(
    ("temperature", "top_p", "max_tool_calls", "metadata", "top_logprobs", "user")
)
"""Fields of a call that its answer repeats, and their values where the call has none."""


class ResponseEvents:
    """The events of one streamed answer."""

    def __init__(self, call: ResponsesCall) -> None:
        self._call = call
        self._response: dict[str, Any] = {}
        self._output: list[dict[str, Any]] = []
        """The items so far; the last one may not be whole."""
        self._finish = ""
        self._numbers = count()

    def feed(self, chunks: bytes) -> bytes:
        """Return the events that the events of a chat add."""
        lines = [line for line in chunks.split(b"\n\n") if line.startswith(b"data: {")]
        events = (event for line in lines for event in self.read(msgspec.json.decode(line[6:])))
        return b"".join(map(self._written, events))

    def _written(self, event: dict[str, Any]) -> bytes:
        payload = msgspec.json.encode(event | {"sequence_number": next(self._numbers)})
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), payload)

    def read(self, chunk: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Iterate over the events of one chunk; the last chunk of an answer has its usage and no choice."""
        if error := chunk.get("error"):
            about = {"code": str(error["code"]), "message": error["message"], "param": error["param"]}
            yield {"type": "error", "error": error} | about
            return
        if not self._response:
            self._response = self._begun(chunk)
            yield {"type": "response.created", "response": self._response}
            yield {"type": "response.in_progress", "response": self._response}
        for choice in chunk["choices"]:
            yield from self._grown(choice["delta"], choice.get("logprobs") or {})
            self._finish = choice.get("finish_reason") or self._finish
        if not chunk["choices"]:
            yield from self._closed()
            yield {"type": "response.completed", "response": self.whole(chunk["usage"])}

    def _begun(self, chat: dict[str, Any]) -> dict[str, Any]:
        call = self._call
        extra = call.model_extra or {}
        return {name: extra.get(name, value) for name, value in _ECHOED.items()} | {
            "id": f"resp_{chat['id'].removeprefix('chatcmpl-')}",
            "object": "response",
            "created_at": chat["created"],
            "model": chat["model"],
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            "instructions": call.instructions,
            "max_output_tokens": call.max_output_tokens,
            "tools": call.tools,
            "tool_choice": call.tool_choice,
            "text": call.text.model_dump() if call.text else None,
            "reasoning": call.reasoning.model_dump() if call.reasoning else None,
            "truncation": "disabled",
            "background": False,
            "store": False,
            "previous_response_id": None,
        }

    def whole(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the response at its end."""
        is_cut = self._finish == "length"
        return self._response | {
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self._output,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
        }

    def _grown(self, delta: dict[str, Any], logprobs: dict[str, Any]) -> Iterator[dict[str, Any]]:
        reasoning = delta.get("reasoning") or delta.get("reasoning_content")
        for kind, text in (("reasoning", reasoning), ("message", delta.get("content"))):
            if text:
                yield from self._text(kind, text, logprobs.get("content") or [])
        for call in delta.get("tool_calls") or ():
            yield from self._called(call)

    def _text(self, kind: str, text: str, logprobs: list[Any]) -> Iterator[dict[str, Any]]:
        if not (self._output and self._output[-1]["type"] == kind):
            part: dict[str, Any] = {"type": _PARTS[kind], "text": ""}
            of_kind: dict[str, Any] = {"summary": []}
            if kind == "message":
                part |= {"annotations": [], "logprobs": []}
                of_kind = {"role": "assistant"}
            yield from self._opened(kind, of_kind | {"content": []})
            self._output[-1]["content"].append(part)
            yield self._about("content_part.added", content_index=0, part=part)
        part = self._output[-1]["content"][0]
        part["text"] += text
        of_text = {"logprobs": logprobs} if kind == "message" else {}
        part.get("logprobs", []).extend(logprobs)
        yield self._about(f"{_PARTS[kind]}.delta", content_index=0, delta=text, **of_text)

    def _called(self, call: dict[str, Any]) -> Iterator[dict[str, Any]]:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        yield from self._opened("function_call", {"call_id": call["id"], "name": name, "arguments": ""})
        self._output[-1]["arguments"] = arguments
        yield self._about("function_call_arguments.delta", delta=arguments)
        yield self._about("function_call_arguments.done", name=name, arguments=arguments)

    def _opened(self, kind: str, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._closed()
        name = f"{_PREFIXES[kind]}_{secrets.token_hex(12)}"
        self._output.append({"id": name, "type": kind, "status": "in_progress"} | fields)
        yield self._of_item("added")

    def _closed(self) -> Iterator[dict[str, Any]]:
        """Iterate over the events that end the last item, if it goes on."""
        if not self._output or self._output[-1]["status"] == "completed":
            return
        item = self._output[-1]
        for part in item.get("content", ()):
            of_text = {name: value for name, value in part.items() if name in ("text", "logprobs")}
            yield self._about(f"{part['type']}.done", content_index=0, **of_text)
            yield self._about("content_part.done", content_index=0, part=part)
        item["status"] = "completed"
        yield self._of_item("done")

    def _of_item(self, what: str) -> dict[str, Any]:
        place = {"output_index": len(self._output) - 1, "item": self._output[-1]}
        return {"type": f"response.output_item.{what}"} | place

    def _about(self, what: str, **fields: Any) -> dict[str, Any]:
        place = {"output_index": len(self._output) - 1, "item_id": self._output[-1]["id"]}
        return {"type": f"response.{what}"} | place | fields


def whole_response(call: ResponsesCall, body: bytes) -> bytes:
    """Return the body of the answer to a call, made of that to its chat."""
    chat = msgspec.json.decode(body)
    events, choice = ResponseEvents(call), chat["choices"][0]
    for _ in events.read(chat | {"choices": [choice | {"delta": choice["message"]}]}):
        pass
    *_, last = events.read(chat | {"choices": []})
    return msgspec.json.encode(last["response"])
