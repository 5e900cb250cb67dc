"""Reads the messages of an OpenAI client for chat templates, and tells which of them are the same. Pure.

A client echoes what the model answered as its own libraries write it: texts in parts, arguments in another
spacing, ids of its own. `mark_after` is equal for a message and its echo, so a request can be found to extend
an earlier answer, of which the sampled tokens are then used again.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rl_agent.chat.template import Message
from rl_agent.chat.tool_formats import Schema, ToolCall
from rl_agent.engine.image_content import read_image_part

ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles of OpenAI, and those of chat templates."""


def read_messages(given: object, images: dict[str, bytes] | None = None) -> tuple[Message, ...]:
    """Return messages as chat templates take them. Raises ValueError that names what is wrong.

    Files of images are added to `images` by their digests, which their parts of messages have.
    """
    if not isinstance(given, list) or not given:
        raise ValueError("messages: expected a list of messages")
    names: dict[str, str] = {}
    messages = []
    for place, message in enumerate(given):
        try:
            messages.append(_read_message(message, names, {} if images is None else images))
        except ValueError as error:
            raise ValueError(f"messages[{place}]: {error}") from None
    return tuple(messages)


def _read_message(given: object, names: dict[str, str], images: dict[str, bytes]) -> Message:
    """Read a message; `names` has the functions of the calls so far by the calls' ids."""
    role = ROLES.get(str(given.get("role"))) if isinstance(given, dict) else None
    if not isinstance(given, dict) or role is None:
        raise ValueError(f"expected an object with one of the roles {', '.join(ROLES)}")
    message: Message = {"role": role, "content": _content_of(given.get("content"), images)}
    if role == "assistant" and not isinstance(message["content"], str):
        raise ValueError("content: an answer has no images")
    if role == "assistant" and given.get("tool_calls"):
        message["tool_calls"] = list(_read_calls(given["tool_calls"]))
        names.update((call["id"], call["function"]["name"]) for call in message["tool_calls"])
    if role == "tool":
        call_id = str(given.get("tool_call_id") or "")
        message |= {"tool_call_id": call_id, "name": names.get(call_id, "tool")}
    return message


def _content_of(content: object, images: dict[str, bytes]) -> str | list[dict[str, Any]]:
    """Return the text of a content, which may come in parts, or its parts if some are images.

    Raises ValueError for another part.
    """
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[dict[str, Any]] = []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, dict) and "image_url" in part:
            image = read_image_part(part)
            images[image.digest] = image.content or b""
            parts.append({"type": "image", "digest": image.digest})
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get(kind) if isinstance(part, dict) and kind in ("text", "refusal") else None
        if not isinstance(text, str):
            raise ValueError(
                f"content: only texts and images can be read here, not a part of the type {kind!r}"
            )
        parts.append({"type": "text", "text": text})
    return parts if any(part["type"] == "image" for part in parts) else _text_of(parts)


def digests_of(messages: Sequence[Message]) -> list[str]:
    """Return the digests of the images of messages, in order."""
    parts = (part for message in messages for part in message["content"] if isinstance(part, dict))
    return [part["digest"] for part in parts if part["type"] == "image"]


def _text_of(content: str | Sequence[Mapping[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _read_calls(given: object) -> Iterator[dict[str, Any]]:
    """Iterate over calls with their arguments as an object, which chat templates want."""
    for call in given if isinstance(given, list) else [given]:
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(name, str):
            raise ValueError("tool_calls: expected calls of functions")
        arguments = function.get("arguments") or "{}"
        try:
            read = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError):
            read = arguments
        named = {"name": name, "arguments": read}
        yield {"id": str(call.get("id") or ""), "type": "function", "function": named}


def message_of(content: str, calls: Sequence[ToolCall]) -> Message:
    """Return an answer as a message, as far as `mark_after` reads it."""
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return {"role": "assistant", "content": content} | (
        {"tool_calls": [{"function": function} for function in functions]} if functions else {}
    )


def marks_of(tools: Sequence[Schema], messages: Sequence[Message]) -> list[bytes]:
    """Return a digest of each beginning of a conversation, that of none of its messages first."""
    marks = [_digest(list(tools))]
    for message in messages:
        marks.append(mark_after(marks[-1], message))
    return marks


def mark_after(mark: bytes, message: Message) -> bytes:
    """Return the digest of a conversation and one more message, equal for its echo by a client."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    content = message["content"].strip() if message["role"] == "assistant" else message["content"]
    return _digest([mark.hex(), message["role"], content, calls])


def _digest(value: object) -> bytes:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()


def shown(messages: Sequence[Message]) -> str:
    """Return messages as a person reads them: the text of a single question, else each with its role."""
    if len(messages) == 1 and messages[0]["role"] in ("user", "tool"):
        return _text_of(messages[0]["content"])
    return "\n\n".join(map(_shown_message, messages))


def _shown_message(message: Mapping[str, Any]) -> str:
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ())]
    return "\n".join(filter(None, (f"[{message['role']}] {_text_of(message['content'])}".rstrip(), *calls)))
