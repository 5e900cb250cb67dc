"""The formats in which models write tool calls, each read in time linear in the text. Pure.

    hermes        <tool_call>{"name": …, "arguments": {…}}</tool_call>      Qwen2.5, Qwen3, Qwen3-VL, Hermes
    qwen3_coder   <tool_call><function=NAME><parameter=KEY>value</parameter>… Qwen3-Coder, Qwen3.5
    llama3_json   {"name": …, "parameters": {…}} as the whole response      Llama 3.1 to 3.3
    mistral       [TOOL_CALLS][{"name": …, "arguments": {…}}], or [TOOL_CALLS]NAME[ARGS]{…}

`FORMATS` is searched by `chat.tool_calls`, which asks a model's chat template which of them it writes.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

Schema = dict[str, Any]
"""A function as chat templates take it: `{"type": "function", "function": {"name": …, "parameters": …}}`."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the agent asks for."""

    name: str
    arguments: dict[str, Any]


class UnreadableCall(ValueError):
    """A text that looks like a tool call cannot be read as one; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write tool calls."""

    name: str
    shape: str
    """A call in this format, for an agent that wrote another one."""
    begins: Callable[[str], bool]
    """Return whether a response without its thoughts makes a call, or tries to."""
    read: Callable[[str, Mapping[str, Schema]], tuple[ToolCall, str]]
    """Return the first call, and the text from the next one on, empty if none follows. Raises UnreadableCall.
    """
    marks: tuple[str, ...] = ()
    """The text before the first of these is said beside the calls; without marks there is none."""


def _reject_constant(word: str) -> NoReturn:
    raise UnreadableCall(f"{word} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)
_BLANK = re.compile(r"\s*")


def _skip_blanks(text: str, begin: int) -> int:
    match = _BLANK.match(text, begin)
    return match.end() if match else begin


def _json_at(text: str, begin: int) -> tuple[Any, int]:
    """Return the JSON value that begins here, after blanks, and the place of its end."""
    begin = _skip_blanks(text, begin)
    if begin == len(text):
        raise UnreadableCall("it ends before its JSON begins")
    try:
        return _DECODER.raw_decode(text, begin)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
            raise UnreadableCall("its JSON is cut off") from None
        raise UnreadableCall(f"{error.msg} at character {error.pos - begin} of its JSON") from None
    except RecursionError:
        raise UnreadableCall("its JSON is nested too deeply") from None
    except UnreadableCall:
        raise
    except ValueError:  # a number of thousands of digits
        raise UnreadableCall("its JSON holds a number that is too long") from None


_OF_A_CALL = {"name", "id", "type"}
"""Keys of a call beside its arguments."""


def _call_of(written: Any, *names_of_arguments: str) -> ToolCall:
    """Make a call of a JSON object; its arguments may be missing, or be JSON in a string."""
    if not isinstance(written, dict):
        raise UnreadableCall("it is not a JSON object")
    name = written.get("name")
    if not isinstance(name, str) or not name:
        raise UnreadableCall("it has no name")
    arguments: Any = next((written[key] for key in names_of_arguments if key in written), None)
    if arguments is None and (unknown := sorted(written.keys() - _OF_A_CALL - set(names_of_arguments))):
        raise UnreadableCall(f"it has {unknown[0][:40]!r} where its {names_of_arguments[0]} are expected")
    arguments = {} if arguments is None else arguments
    if isinstance(arguments, str):
        arguments, _ = _json_at(arguments, 0)
    if not isinstance(arguments, dict):
        raise UnreadableCall(f"its {names_of_arguments[0]} are not a JSON object")
    return ToolCall(name, arguments)


_HERMES, _HERMES_END = "<tool_call>", "</tool_call>"


def _read_hermes(text: str, _schemas: Mapping[str, Schema]) -> tuple[ToolCall, str]:
    begin = text.index(_HERMES) + len(_HERMES)
    written, end = _json_at(text, begin)
    end = _skip_blanks(text, end)
    if end < len(text) and not text.startswith(_HERMES_END, end):
        raise UnreadableCall(f"after its JSON there is no {_HERMES_END}")
    return _call_of(written, "arguments", "parameters"), _from(text, _HERMES, end)


_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


def _read_qwen3_coder(text: str, schemas: Mapping[str, Schema]) -> tuple[ToolCall, str]:
    begin = text.index(_FUNCTION) + len(_FUNCTION)
    name, at = _up_to(text, ">", begin)
    end = text.find(_FUNCTION_END, at)
    if end < 0:
        raise UnreadableCall(f"its {_FUNCTION_END} is missing")
    parameters = schemas.get(name.strip(), {}).get("function", {}).get("parameters", {})
    parameters = parameters if isinstance(parameters, dict) else {}
    properties = parameters.get("properties", {})
    arguments, kinds = dict[str, Any](), dict[str, set[str]]()
    while (place := text.find(_PARAMETER, at, end)) >= 0:
        key, at = _up_to(text, ">", place + len(_PARAMETER))
        value, at = _up_to(text, _PARAMETER_END, at)
        if at > end:  # the text of a value holds the end of a function
            end = text.find(_FUNCTION_END, at)
            if end < 0:
                raise UnreadableCall(f"its {_FUNCTION_END} is missing")
        key = key.strip()
        if key not in kinds:
            kinds[key] = _kinds_of(properties.get(key), parameters)
        arguments[key] = _typed(value.removeprefix("\n").removesuffix("\n"), kinds[key])
    return ToolCall(name.strip(), arguments), _from(text, _FUNCTION, end)


def _from(text: str, mark: str, begin: int) -> str:
    """Return the text from the next mark on; empty if there is none."""
    place = text.find(mark, begin)
    return text[place:] if place >= 0 else ""


def _up_to(text: str, mark: str, begin: int) -> tuple[str, int]:
    """Return the text before the next mark, and the place after it."""
    place = text.find(mark, begin)
    if place < 0:
        raise UnreadableCall(f"a {mark} is missing")
    return text[begin:place], place + len(mark)


_CONSTANTS = {"True": True, "False": False, "None": None, "null": None}
"""Values that the template writes as Python does, and the word of JSON for none."""
_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_DEFINITIONS = "#/$defs/"


def _typed(text: str, kinds: set[str]) -> Any:
    """Read a parameter that was written as text: as it is where a text is wanted, else as a value."""
    if text in _CONSTANTS and (not kinds or _KINDS[type(_CONSTANTS[text])] in kinds):
        return _CONSTANTS[text]
    if "string" in kinds:
        return text
    try:
        value, end = _json_at(text, 0)
    except UnreadableCall:
        return text
    return value if not text[end:].strip() else text


def _kinds_of(schema: Any, parameters: Schema) -> set[str]:
    """Return the types that a parameter's schema allows, by whatever keyword; none where it does not say."""
    kinds, left, seen = set[str](), [schema], set[str]()
    while left:
        subschema = left.pop()
        if not isinstance(subschema, dict):
            continue
        named = subschema.get("type", [])
        kinds.update(kind for kind in ([named] if isinstance(named, str) else named) if isinstance(kind, str))
        values = subschema.get("enum", [subschema["const"]] if "const" in subschema else [])
        kinds.update(_KINDS.get(type(value), "object") for value in values)
        for keyword in ("anyOf", "oneOf", "allOf"):
            left += subschema.get(keyword, [])
        name = str(subschema.get("$ref", "")).removeprefix(_DEFINITIONS)
        if name and name not in seen:
            seen.add(name)
            left.append(parameters.get("$defs", {}).get(name))
    return kinds


_PYTHON_TAG = "<|python_tag|>"


def _begins_llama3_json(text: str) -> bool:
    """Tell a call from an answer that is a JSON object, or begins with a brace: a call has a name."""
    text = text.lstrip()
    if not text.startswith("{"):
        return text.startswith(_PYTHON_TAG)
    try:
        return "name" in _json_at(text, 0)[0]
    except UnreadableCall:
        return '"name"' in text


def _read_llama3_json(text: str, _schemas: Mapping[str, Schema]) -> tuple[ToolCall, str]:
    text = text.lstrip().removeprefix(_PYTHON_TAG)
    written, end = _json_at(text, 0)
    rest = text[end:].lstrip()
    if rest and not rest.startswith(";"):
        raise UnreadableCall("there is text after its JSON")
    rest = rest.lstrip("; \n")
    return _call_of(written, "parameters", "arguments"), rest if rest.startswith("{") else ""


_MISTRAL = "[TOOL_CALLS]"
_MISTRAL_NAME = re.compile(
    r"\s*+([\w.-]{1,256}+)\s*+(?:\[CALL_ID\]\s*+[\w-]{1,64}+\s*+)?+(?:\[ARGS\]\s*+)?+(?=\{)"
)


def _read_mistral(text: str, _schemas: Mapping[str, Schema]) -> tuple[ToolCall, str]:
    begin = text.index(_MISTRAL) + len(_MISTRAL)
    if named := _MISTRAL_NAME.match(text, begin):
        arguments, end = _json_at(text, named.end())
        return _call_of({"name": named[1], "arguments": arguments}, "arguments"), _from(text, _MISTRAL, end)
    written, _ = _json_at(text, begin)
    calls = written if isinstance(written, list) else [written]
    if not calls:
        raise UnreadableCall("its list of calls is empty")
    rest = _MISTRAL + json.dumps(calls[1:]) if calls[1:] else ""
    return _call_of(calls[0], "arguments", "parameters"), rest


FORMATS = (
    ToolFormat(
        "hermes",
        '<tool_call>{"name": …, "arguments": {…}}</tool_call>',
        lambda text: _HERMES in text,
        _read_hermes,
        (_HERMES,),
    ),
    ToolFormat(
        "qwen3_coder",
        "<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>",
        lambda text: _FUNCTION in text or _HERMES in text,
        lambda text, schemas: _read_qwen3_coder(_with_function(text), schemas),
        (_HERMES, _FUNCTION),
    ),
    ToolFormat(
        "mistral",
        '[TOOL_CALLS]NAME[ARGS]{"key": …}',
        lambda text: _MISTRAL in text,
        _read_mistral,
        (_MISTRAL,),
    ),
    ToolFormat("llama3_json", '{"name": …, "parameters": {…}}', _begins_llama3_json, _read_llama3_json),
)


def _with_function(text: str) -> str:
    if _FUNCTION not in text:
        raise UnreadableCall(f"there is no {_FUNCTION}")
    return text
