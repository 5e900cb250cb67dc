"""One line of a trajectory file: a JSON object whose last field is the checksum of what stands before it.

    {"key": {"task_id": "sum-1", …}, … "schema_version": 2, "crc32": "0a1b2c3d"}

The checksum is of all bytes before its own comma, so a line stays JSON that any program reads.
"""

import zlib
from pathlib import Path
from typing import TypeVar

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from rl_agent.errors import DamagedLine, StoreError
from rl_agent.types import SCHEMA_VERSION, Trajectory

_T = TypeVar("_T")

_CRC_BEGIN, _CRC_END = b',"crc32":"', b'"}\n'
_CRC_BYTES = len(_CRC_BEGIN) + 8 + len(_CRC_END)


def to_line(trajectory: Trajectory) -> bytes:
    """The episode as one line, newline included. Raises StoreError where JSON cannot hold a value."""
    return with_checksum(to_json(trajectory))


def to_json(trajectory: Trajectory) -> bytes:
    """The episode as one JSON object. Raises like `to_line`."""
    # Non-finite numbers (an engine's -inf logprob) become strings: JSON has no word for them.
    try:
        return pydantic_core.to_json(trajectory, inf_nan_mode="strings")
    except pydantic_core.PydanticSerializationError as error:
        raise StoreError(f"episode {trajectory.key} cannot be written as JSON: {error}") from error


def parse_line(
    adapter: TypeAdapter[_T], path: Path, place: int | str, line: bytes, *, is_checked: bool
) -> _T:
    """What a whole line holds; `is_checked`: it must have a checksum.

    Raises DamagedLine if it is not as it was written, StoreError if it is of a newer version.
    """
    end = len(line) - _CRC_BYTES
    if ends_with_checksum(line):
        if _crc32(memoryview(line)[:end]) != line[end + len(_CRC_BEGIN) : -len(_CRC_END)]:
            raise DamagedLine(f"{path}:{place}: is damaged: its bytes do not match its checksum")
    elif is_checked:
        raise DamagedLine(f"{path}:{place}: is damaged: it does not end with its checksum")
    try:
        parsed = adapter.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DamagedLine(f"{path}:{place}: {where + ': ' if where else ''}{first['msg']}") from error
    version = getattr(parsed, "schema_version", SCHEMA_VERSION)
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path}:{place}: schema version {version} is newer than {SCHEMA_VERSION}, the newest known here"
        )
    return parsed


def ends_with_checksum(line: bytes) -> bool:
    """Whether there is one, right or wrong."""
    return line.endswith(_CRC_END) and line.startswith(_CRC_BEGIN, max(len(line) - _CRC_BYTES, 0))


def with_checksum(json_object: bytes) -> bytes:
    """The line of an object: its checksum is its last field."""
    body = memoryview(json_object)[:-1]
    return b"".join((body, _CRC_BEGIN, _crc32(body), _CRC_END))


def _crc32(content: memoryview) -> bytes:
    return b"%08x" % zlib.crc32(content)
