"""Writes what an MCP server's tool returned as text for an agent. Pure."""

import json
from collections.abc import Sequence
from typing import Any

_RESULT = "result"
"""The only key of an object in which the MCP SDK wraps a result that is none."""


def text_of(part: Any) -> str:
    """Return a part of a result as text; what cannot be shown as text is named in brackets."""
    match part.type:
        case "text":
            return str(part.text)
        case "resource":
            resource = part.resource
            text = getattr(resource, "text", None)
            return text if text is not None else _named("resource", resource.uri, resource.mime_type)
        case "resource_link":
            return _named("link", part.title or part.name, part.uri, part.description)
        case _:
            return _named(part.type, getattr(part, "mime_type", None))


def says(texts: Sequence[str], structured: Any) -> bool:
    """Return whether texts already say what the structured result does, as servers are asked to repeat it."""
    whole = "\n".join(texts)
    readings = [whole, _value_of(whole), list(texts), [_value_of(text) for text in texts]]
    results = [structured]
    if isinstance(structured, dict) and structured.keys() == {_RESULT}:
        results.append(structured[_RESULT])
    return any(reading == other and type(reading) is type(other) for reading in readings for other in results)


def _named(*words: object) -> str:
    return f"[{' '.join(str(word) for word in words if word)}]"


def _value_of(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
