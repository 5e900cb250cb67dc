"""Reads calls of OpenAI's Responses API as the chats that they stand for. Pure.

instructions, input      messages: what one answer brought side by side (reasoning, text, calls) is one
tools, tool_choice       the same in the form of chats
text.format              response_format
max_output_tokens        max_completion_tokens
reasoning.effort         reasoning_effort
any other field          the same field of the chat
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

_NOT_KEPT = "no response is kept here; send the conversation so far as `input`"
_REFUSED = {
    "previous_response_id": _NOT_KEPT,
    "conversation": _NOT_KEPT,
    "background": "a response is answered to the call that asks for it; leave it out",
    "prompt": "no prompt is kept here; send `instructions` and `input`",
}
_IGNORED = frozenset(
    {"store", "stream_options", "truncation", "max_tool_calls", "context_management"}
    | {"prompt_cache_options", "prompt_cache_retention", "n"}
)
"""Fields that say how OpenAI keeps, cuts and sends what chats do not have; and `n`, as a response is one."""
_LOGPROBS = "message.output_text.logprobs"


def _parts(content: Any) -> Any:
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content or []


def _items(given: Any) -> Any:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def _functions(tools: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    others = [str(tool.get("type"))[:40] for tool in tools if tool.get("type") != "function"]
    if others:
        raise ValueError(f"only functions can be called here, not {others[0]!r}")
    if not all(isinstance(tool.get("name"), str) for tool in tools):
        raise ValueError("a function has its name beside its type, not in `function` as in chats")
    return tools


class _Part(BaseModel):
    type: Literal[
        "input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text", "input_image"
    ]
    text: str = ""
    refusal: str = ""
    image_url: str | None = None

    def of_chat(self) -> dict[str, Any]:
        if self.type == "input_image":
            return {"type": "image_url", "image_url": {"url": self.image_url}}
        return {"type": "text", "text": self.text or self.refusal}


_Content = Annotated[list[_Part], BeforeValidator(_parts)]


class _Item(BaseModel):
    type: Literal["message", "reasoning", "function_call", "function_call_output"] = "message"
    role: str = ""
    content: _Content = []
    summary: _Content = []
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: _Content = []


class _TextConfig(BaseModel):
    model_config = ConfigDict(extra="allow")
    format: dict[str, Any] | None = None


class _Reasoning(BaseModel):
    model_config = ConfigDict(extra="allow")
    effort: str | None = None


class ResponsesCall(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    input: Annotated[list[_Item], BeforeValidator(_items), Field(min_length=1)]
    """A text or items: messages of texts and images, `reasoning`, `function_call`, `function_call_output`."""
    instructions: str | None = None
    """The system message."""
    tools: Annotated[list[dict[str, Any]], AfterValidator(_functions)] = []
    """Functions."""
    tool_choice: str | dict[str, Any] = "auto"
    text: _TextConfig | None = None
    """`format` is the `response_format` of a chat."""
    reasoning: _Reasoning | None = None
    """`effort` is given to the chat template."""
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    include: list[str] = []
    """`message.output_text.logprobs` adds the logprobs of a text; the others are of what is not here."""
    stream: bool = False

    def chat(self) -> dict[str, Any]:
        """Return the chat whose answer is that of this call."""
        format_ = (self.text and self.text.format) or {}
        schema = {name: value for name, value in format_.items() if name != "type" and value is not None}
        fields = {
            "tools": [{"type": "function", "function": _without(tool, "type")} for tool in self.tools],
            "tool_choice": self._choice() if self.tools or self.tool_choice != "auto" else None,
            "response_format": {"type": format_.get("type"), "json_schema": schema} if schema else format_,
            "max_completion_tokens": self.max_output_tokens,
            "reasoning_effort": self.reasoning.effort if self.reasoning else None,
            "logprobs": _LOGPROBS in self.include,
            "stream": self.stream,
            "stream_options": {"include_usage": True} if self.stream else None,
        }
        chat = _without(self.model_extra or {}, *_IGNORED) | {"messages": self._messages()}
        return chat | {name: value for name, value in fields.items() if value}

    def _choice(self) -> str | dict[str, Any]:
        choice = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") == "function":
            return {"type": "function", "function": _without(choice, "type")}
        return choice

    def _messages(self) -> list[dict[str, Any]]:
        messages = list[dict[str, Any]]()
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        for item in self.input:
            message = _message_of(item)
            last = messages[-1] if messages else {}
            if message["role"] == last.get("role") == "assistant":
                calls = [*last.get("tool_calls", ()), *message.pop("tool_calls", ())]
                if not message.keys() & last.keys() - {"role"}:
                    last |= message | ({"tool_calls": calls} if calls else {})
                    continue
            messages.append(message)
        return messages


def _message_of(item: _Item) -> dict[str, Any]:
    """Return the message that an item is, or is a part of."""
    if item.type == "function_call_output":
        return {"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)}
    if item.type == "function_call":
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if item.type == "reasoning":
        return {"role": "assistant", "reasoning": _text(item.content or item.summary)}
    is_answer = item.role == "assistant"
    return {"role": item.role, "content": _text(item.content) if is_answer else _content(item.content)}


def _content(parts: Sequence[_Part]) -> str | list[dict[str, Any]]:
    """Return the content of a message: the only text, or several parts."""
    is_text = len(parts) == 1 and parts[0].type != "input_image"
    return _text(parts) if is_text else [part.of_chat() for part in parts]


def _text(parts: Iterable[_Part]) -> str:
    return "".join(part.text or part.refusal for part in parts)


def _without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names and value is not None}


def read_responses_call(given: dict[str, Any]) -> ResponsesCall:
    """Raises ValueError that begins with the field that is wrong."""
    if refused := next((name for name in _REFUSED if given.get(name)), None):
        raise ValueError(f"{refused}: {_REFUSED[refused]}")
    try:
        return ResponsesCall.model_validate(_without(given, *_REFUSED))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name, *places = first["loc"]
        field = str(name) + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in places)
        words = first["msg"].removeprefix("Value error, ").partition(" or instance of ")[0]
        raise ValueError(f"{field}: {words}") from None
