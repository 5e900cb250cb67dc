"""Images in messages themselves, as `data:` addresses: written of files for a server elsewhere, and read."""

import base64
import hashlib
import mimetypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rl_agent.engine.packed import ImageContent

_DATA = re.compile(r"data:image/[^,]{1,200};base64,(.*)", re.IGNORECASE | re.DOTALL)


def inlined(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with each image as a `data:` address."""
    return [
        message if isinstance(message["content"], str) else message | {"content": _parts(message["content"])}
        for message in messages
    ]


def _parts(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        part | {"image_url": _data(part["image_url"]["url"])} if "image_url" in part else part
        for part in parts
    ]


def _data(address: str) -> dict[str, str]:
    path = Path(unquote(urlsplit(address).path))
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    return {"url": f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"}


def read_image_part(part: Mapping[str, Any]) -> ImageContent:
    """Return the image of an `image_url` part, whose bytes are not looked at. Raises ValueError."""
    address = part["image_url"]
    address = address.get("url") if isinstance(address, dict) else address
    data = _DATA.fullmatch(address) if isinstance(address, str) else None
    if data is None:
        words = "send the image itself as data:image/png;base64,…; no address is followed"
        raise ValueError(f"image_url: {words}")
    try:
        content = base64.b64decode(data[1], validate=True)
    except ValueError as error:
        raise ValueError(f"image_url: no base64: {error}") from None
    if not content:
        raise ValueError("image_url: the image is empty")
    return ImageContent(hashlib.sha256(content).hexdigest(), content)
