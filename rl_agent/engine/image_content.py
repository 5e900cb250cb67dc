"""Puts images themselves into messages that name their files: a server elsewhere cannot read these."""

import base64
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


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
