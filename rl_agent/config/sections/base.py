"""The base class of all parts of the configuration, and the ranges of their values.

A number must be finite and must fit the libraries that receive it: a count 32 bits, a wait what an operating
system can wait, a seed what numpy takes after an iteration or a rank was added to it.
"""

import os
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from rl_agent.system.json_values import problem_of

MAX_COUNT = 2**31 - 1
MAX_SECONDS = 1e8
"""About three years; some system calls refuse much more."""


def _is_json(value: dict[str, Any]) -> dict[str, Any]:
    if problem := problem_of(value, ""):
        raise PydanticCustomError("not_json", "{problem}", {"problem": problem})
    return value


def absolute(path: Path) -> Path:
    """Return the path as it is meant where this process stands; links stay, for they differ between nodes."""
    return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100


def server_urls(urls: tuple[str, ...]) -> tuple[str, ...]:
    """Return addresses of servers without a slash at their end; refuse one that is none, or named twice."""
    addresses = tuple(url.rstrip("/") for url in urls)
    for at, url in enumerate(addresses):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
            raise PydanticCustomError("no_url", "{url}: expected http://HOST:PORT", {"url": url})
        if url in addresses[:at]:
            raise PydanticCustomError("twice", "{url} is named twice", {"url": url})
    return addresses


Port = Annotated[int, Field(ge=1, le=65535)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
AtLeast2 = Annotated[int, Field(ge=2, le=MAX_COUNT)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Seed = Annotated[int, Field(ge=0, le=MAX_COUNT)]
NotNegative = Annotated[float, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
SampleSize = Annotated[int, Field(ge=-1, le=MAX_COUNT)]
CallersPath = Annotated[Path, AfterValidator(absolute)]
"""May be named relative to where the caller stands; every later process of a run works elsewhere."""
FreeForm = Annotated[dict[str, Any], AfterValidator(_is_json)]
"""Keys and values that a library or an environment understands; they are passed on as they are."""


class Section(BaseModel):
    """A part of the configuration: immutable; an unknown key and a number that is not finite are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )
