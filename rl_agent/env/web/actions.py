"""Reads what an agent wants to do in a browser: one line of text, or a tool call as JSON.

    click 500 300                     {"name": "click", "arguments": {"x": 500, "y": 300}}
    type hello                        {"name": "type", "arguments": {"text": "hello"}}

Coordinates go from 0 to 1000, left to right and top to bottom, whatever the size of the screenshot. All
is read in time linear in its length, and what cannot be read is an `InvalidAction` with one line that the
agent can use.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_COORDINATE = 1000
MAX_TEXT = 2000
"""Characters of a text to type, an answer or an address."""
MAX_WAIT_S = 10.0
MAX_SCROLLS = 10

Point = tuple[float, float]

GRAMMAR = {
    "click": "click X Y",
    "double_click": "double_click X Y",
    "hover": "hover X Y",
    "drag": "drag X Y TO_X TO_Y",
    "type": "type TEXT",
    "key": "key NAME",
    "scroll": "scroll DIRECTION [X Y]",
    "back": "back",
    "goto": "goto URL",
    "wait": "wait [SECONDS]",
    "answer": "answer TEXT",
}
"""The actions as text, one per line."""

_ALIASES = {
    "left_click": "click",
    "tap": "click",
    "doubleclick": "double_click",
    "dblclick": "double_click",
    "left_click_drag": "drag",
    "mouse_move": "hover",
    "press": "key",
    "go_back": "back",
    "goback": "back",
    "navigate": "goto",
}
_DIRECTIONS = ("up", "down", "left", "right")
_MODIFIERS = {"control": "Control", "ctrl": "Control", "shift": "Shift", "alt": "Alt", "meta": "Meta"}
_KEYS = {
    name.lower(): name
    for name in (
        "Enter", "Tab", "Escape", "Backspace", "Delete", "Space", "Home", "End", "PageUp", "PageDown",
        "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Insert",
    )
} | {"return": "Enter", "esc": "Escape", "up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft",
     "right": "ArrowRight", "del": "Delete", "page_up": "PageUp", "page_down": "PageDown"}  # fmt: skip
_LINE = re.compile(r"[\s`>*-]*+(?:action\s*+:[\s`*]*+)?([a-z_]+)\b(.*)", re.IGNORECASE | re.DOTALL)
"""Marks of lists and quotes, perhaps "Action:", a word, the rest; what was skipped is not tried again."""


class InvalidAction(ValueError):
    """A response that is not an action; the message is one line for the agent."""


@dataclass(frozen=True, slots=True)
class WebAction:
    """One action, its coordinates still from 0 to 1000."""

    name: str
    at: Point | None = None
    to: Point | None = None
    text: str = ""
    """The text, the key, the direction, the address or the answer."""
    clear: bool = False
    """Makes `type` replace what is in the field."""
    enter: bool = False
    """Makes `type` press Enter at the end."""
    number: float = 1.0
    """The seconds to wait, or how many times to scroll."""


def read_action(response: str) -> WebAction:
    """Return the action: a JSON object, or the last line that begins with the name of one.

    Raises InvalidAction.
    """
    response = response.strip()
    if response.startswith("{"):
        return _read_call(response)
    lines = response.splitlines()
    for line in reversed(lines):
        match = _LINE.fullmatch(line[: 4 * MAX_TEXT])
        if match and (name := _name(match[1])):
            return _READERS[name](_words(name, match[2].strip().rstrip("`").strip()))
    forms = ", ".join(GRAMMAR.values())
    raise InvalidAction(f"That is not an action. Write one on a line of its own: {forms}.")


def _read_call(text: str) -> WebAction:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidAction(
            'That is not JSON. Call a tool as {"name": "click", "arguments": {"x": 500, "y": 500}}.'
        ) from None
    if not isinstance(call, dict):
        raise InvalidAction("That is not one tool call.")
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise InvalidAction("The arguments of the tool call are not JSON.") from None
    if not isinstance(arguments, dict):
        raise InvalidAction("The arguments of the tool call are not a JSON object.")
    spoken = call.get("name")
    if isinstance(arguments.get("action"), str):  # Qwen's computer_use names the action among the arguments
        spoken = arguments["action"]
    name = _name(spoken) if isinstance(spoken, str) else None
    if name is None:
        raise InvalidAction(f"There is no tool {str(spoken)[:40]!r}; there are {', '.join(GRAMMAR)}.")
    return _READERS[name](arguments)


def _name(spoken: str) -> str | None:
    name = spoken.lower()
    name = _ALIASES.get(name, name)
    return name if name in GRAMMAR else None


def _words(name: str, rest: str) -> dict[str, Any]:
    """Return the words of a line as the arguments of a tool call."""
    if rest.startswith("(") and rest.endswith(")"):
        rest = rest[1:-1].strip()
    if name in ("type", "key", "goto", "answer"):
        field = {"key": "key", "goto": "url"}.get(name, "text")
        return {field: _unquoted(rest)}
    numbers = rest.replace(",", " ").split()
    if name == "scroll":
        direction, numbers = (numbers[0], numbers[1:]) if numbers else ("", [])
        return {"direction": direction.strip("\"'")} | _numbered(numbers, "scroll", ("x", "y"), least=0)
    if name == "wait":
        return _numbered([number.removesuffix("s") for number in numbers[:1]], name, ("seconds",), least=0)
    if name == "back":
        return {}
    return _numbered(numbers, name, ("x", "y", "to_x", "to_y") if name == "drag" else ("x", "y"))


def _numbered(
    words: list[str], name: str, fields: tuple[str, ...], *, least: int | None = None
) -> dict[str, Any]:
    if len(words) != len(fields) and not (least is not None and len(words) == least):
        raise InvalidAction(
            f"{name} needs {GRAMMAR[name].removeprefix(name).strip()}: write {GRAMMAR[name]}."
        )
    return dict(zip(fields, words, strict=False))


def _unquoted(text: str) -> str:
    is_quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


def _number(value: Any, what: str, highest: float) -> float:
    if isinstance(value, str):
        try:
            value = float(value[:40])
        except ValueError:
            raise InvalidAction(f"{what} is {value[:40]!r}; write a number from 0 to {highest:g}.") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= highest:
        shown = f"{value!r}"[:40] if isinstance(value, int | float) else "no number"
        raise InvalidAction(f"{what} is {shown}; write a number from 0 to {highest:g}.")
    return float(value) if math.isfinite(value) else 0.0


def _point(arguments: Mapping[str, Any], x: str = "x", y: str = "y", pair: str = "coordinate") -> Point:
    both = arguments.get(pair)
    if isinstance(both, list) and len(both) == 2:
        arguments = {x: both[0], y: both[1]}
    for field in (x, y):
        if field not in arguments:
            raise InvalidAction(
                f"{field} is missing; give {x} and {y} as numbers from 0 to {MAX_COORDINATE}."
            )
    return _number(arguments[x], x, MAX_COORDINATE), _number(arguments[y], y, MAX_COORDINATE)


def _point_if_any(arguments: Mapping[str, Any]) -> Point | None:
    return _point(arguments) if {"x", "y", "coordinate"} & set(arguments) else None


def _text(arguments: Mapping[str, Any], field: str, name: str) -> str:
    value = arguments.get(field)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value:
        raise InvalidAction(f"{name} needs {field}: write {GRAMMAR[name]}.")
    if len(value) > MAX_TEXT:
        raise InvalidAction(f"The {field} has {len(value)} characters; write at most {MAX_TEXT}.")
    return value.encode(errors="replace").decode()  # half characters cannot be sent to the browser


def _pointer(name: str) -> Callable[[Mapping[str, Any]], WebAction]:
    return lambda arguments: WebAction(name, _point(arguments))


def _drag(arguments: Mapping[str, Any]) -> WebAction:
    start = _point(arguments, pair="start_coordinate")
    return WebAction("drag", start, _point(arguments, "to_x", "to_y"))


def _type(arguments: Mapping[str, Any]) -> WebAction:
    return WebAction(
        "type",
        _point_if_any(arguments),
        text=_text(arguments, "text", "type"),
        clear=arguments.get("clear") is True,
        enter=arguments.get("enter") is True,
    )


def _key(arguments: Mapping[str, Any]) -> WebAction:
    if isinstance(keys := arguments.get("keys"), list):  # of Qwen's computer_use
        arguments = {"key": "+".join(str(key) for key in keys[:8])}
    spoken = _text(arguments, "key", "key").strip()
    *modifiers, last = (
        [*spoken[:-1].rstrip("+").split("+"), "+"] if spoken.endswith("++") else spoken.split("+")
    )
    named = [_MODIFIERS.get(word.strip().lower()) for word in modifiers[:4]]
    key = last.strip() if len(last.strip()) == 1 else _KEYS.get(last.strip().lower())
    if spoken == "+":
        named, key = [], "+"
    if key is None or None in named or len(modifiers) > 3 or not key.isprintable():
        raise InvalidAction(
            f"There is no key {spoken[:40]!r}; use a character or one of Enter, Tab, Escape, Backspace,"
            " Delete, Space, Home, End, PageUp, PageDown, ArrowUp, ArrowDown, ArrowLeft, ArrowRight, with"
            " Control+, Shift+ or Alt+ before it."
        )
    return WebAction("key", text="+".join([*(word for word in named if word), key]))


def _scroll(arguments: Mapping[str, Any]) -> WebAction:
    direction = arguments.get("direction", "")
    if direction not in _DIRECTIONS:
        raise InvalidAction(f"The direction is {str(direction)[:40]!r}; use up, down, left or right.")
    times = _number(arguments.get("times", 1), "times", MAX_SCROLLS)
    return WebAction("scroll", _point_if_any(arguments), text=direction, number=times)


def _back(_arguments: Mapping[str, Any]) -> WebAction:
    return WebAction("back")


def _goto(arguments: Mapping[str, Any]) -> WebAction:
    url = _text(arguments, "url", "goto").strip()
    if "://" not in url and not re.match(r"[a-z]+:(?!\d)", url, re.IGNORECASE):
        url = f"https://{url}"
    if not re.match(r"https?://[^\s/]", url, re.IGNORECASE):
        raise InvalidAction(f"{url[:80]!r} is not an address of the web; write http://… or https://….")
    return WebAction("goto", text=url)


def _wait(arguments: Mapping[str, Any]) -> WebAction:
    seconds = arguments.get("seconds", arguments.get("time", 1))
    return WebAction("wait", number=_number(seconds, "seconds", MAX_WAIT_S))


def _answer(arguments: Mapping[str, Any]) -> WebAction:
    return WebAction("answer", text=_text(arguments, "text", "answer"))


_READERS: dict[str, Callable[[Mapping[str, Any]], WebAction]] = {
    "click": _pointer("click"),
    "double_click": _pointer("double_click"),
    "hover": _pointer("hover"),
    "drag": _drag,
    "type": _type,
    "key": _key,
    "scroll": _scroll,
    "back": _back,
    "goto": _goto,
    "wait": _wait,
    "answer": _answer,
}
