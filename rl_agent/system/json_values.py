"""Checks that every reader of JSON gives a value from outside back as it was.

Readers differ: some end at a depth of 200, some hold integers in 64 bits, none has a word for NaN, and a file
holds no half of a surrogate pair. What passes here passes all of them.
"""

import math
from typing import Any

MAX_DEPTH = 64
"""The largest depth of nested objects and lists."""
_INTEGERS = range(-(2**63), 2**64)
_MAX_SHOWN = 120


def problem_of(value: Any, name: str) -> str:
    """Return where in `value`, called `name`, JSON cannot carry something, and what; empty if nowhere."""
    waiting: list[tuple[Any, str, int]] = [(value, name, 0)]
    while waiting:
        item, place, depth = waiting.pop()
        if isinstance(item, dict | list | tuple):
            if depth == MAX_DEPTH:
                return f"{_shown(place)}: nested deeper than {MAX_DEPTH} levels; flatten it"
            if isinstance(item, dict):
                for key in item:
                    if not isinstance(key, str) or (problem := _of_text(key)):
                        what = problem if isinstance(key, str) else f"is a {type(key).__name__}"
                        return f"{_shown(place)}: the key {key!r:.40} {what}; use a string"
                waiting += [(inner, f"{place}.{key}", depth + 1) for key, inner in item.items()]
            else:
                waiting += [(inner, f"{place}[{at}]", depth + 1) for at, inner in enumerate(item)]
        elif problem := _of_plain(item):
            return f"{_shown(place)}: {problem}"
    return ""


def _of_plain(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, str):
        return _of_text(value)
    if isinstance(value, int):
        return "" if value in _INTEGERS else "the integer has more than 64 bits; write it as a string"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{value} is not JSON; use a number, a string or null"
    return f"a {type(value).__name__} is not JSON; use a string, a number, a list or an object"


def _of_text(text: str) -> str:
    if text.isascii():
        return ""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half of a surrogate pair (\\ud800-\\udfff); write the character itself"
    return ""


def _shown(place: str) -> str:
    place = place.encode(errors="backslashreplace").decode()
    return place if len(place) <= _MAX_SHOWN else f"{place[:_MAX_SHOWN]}…"
