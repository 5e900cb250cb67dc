"""Takes the images out of a chat: they go to engines as files, and the chat names them. Pure.

    {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}
        ─► {"type": "image_url", "image_url": null, "uuid": SHA-256}, and the file

The bytes are never decoded to pixels here, and an address is followed nowhere: neither by the pool nor by an
engine, whose network and files are not the client's.
"""

from collections.abc import Sequence
from typing import Any

from rl_agent.engine.image_content import read_image_part
from rl_agent.engine.packed import ImageContent
from rl_agent.pool.problem import problem

_TEXTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})


def take_images(chat: dict[str, Any]) -> tuple[dict[str, Any], Sequence[ImageContent]]:
    """Return the chat with names for its images, and the images in order. Raises web.HTTPException."""
    images: list[ImageContent] = []
    messages = chat.get("messages")
    if isinstance(messages, list):
        named = [_named(message, f"messages[{at}]", images) for at, message in enumerate(messages)]
        chat = chat | {"messages": named}
    return chat, images


def _named(message: Any, where: str, images: list[ImageContent]) -> Any:
    parts = message.get("content") if isinstance(message, dict) else None
    if not isinstance(parts, list):
        return message
    return message | {
        "content": [_named_part(part, f"{where}.content[{at}]", images) for at, part in enumerate(parts)]
    }


def _named_part(part: Any, where: str, images: list[ImageContent]) -> Any:
    if not isinstance(part, dict) or (part.get("type") in _TEXTS and "uuid" not in part):
        return part
    if "image_url" not in part:
        words = f"{where}: a chat takes texts and images (image_url), not {str(part.get('type'))[:40]!r}"
        raise problem(400, words, param="messages")
    try:
        images.append(read_image_part(part))
    except ValueError as error:
        raise problem(400, f"{where}.{error}", param="messages") from None
    return {"type": "image_url", "image_url": None, "uuid": images[-1].digest}
