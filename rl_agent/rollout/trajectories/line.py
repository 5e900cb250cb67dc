"""One line of a trajectory file: a JSON object whose last field is the checksum of what stands before it.

    {"key": {"task_id": "sum-1", …}, … "schema_version": 2, "crc32": "0a1b2c3d"}

The checksum is of all bytes before its own comma, so a line stays JSON that any program reads.
"""

import zlib
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from rl_agent.errors import DamagedLine, StoreError, UnwritableEpisode
from rl_agent.system.json_values import problem_of
from rl_agent.types import MAX_MESSAGE, SCHEMA_VERSION, Failure, Status, Trajectory, writable

_T = TypeVar("_T")
TRAJECTORY = TypeAdapter(Trajectory)
MAX_LINE_BYTES = 512 * 2**20

_CRC_BEGIN, _CRC_END = b',"crc32":"', b'"}\n'
_CRC_BYTES = len(_CRC_BEGIN) + 8 + len(_CRC_END)


def recorded(trajectory: Trajectory) -> tuple[Trajectory, bytes]:
    """Return the episode as it is recorded, and its line.

    One that holds what cannot be written, or not be read again, has failed: it is recorded without all that
    comes from outside. So no line in a file is one that its readers refuse.
    """
    try:
        return trajectory, to_line(trajectory)
    except UnwritableEpisode as error:
        failure = Failure(type(error).__name__, str(error)[:MAX_MESSAGE])
        failed = replace(trajectory, status=Status.FAILED, reward=None, failure=failure, reward_detail={})
        bare = replace(failed, steps=(), task=replace(failed.task, extra={}), last_observation="")
        return bare, to_line(bare)


def to_line(trajectory: Trajectory) -> bytes:
    """Return the episode as one line. Raises UnwritableEpisode if it would not be read again."""
    free = {"task.extra": trajectory.task.extra, "reward_detail": trajectory.reward_detail}
    for name, value in free.items():
        if problem := problem_of(value, name):
            raise UnwritableEpisode(problem)
    line = with_checksum(to_json(trajectory))
    if len(line) > MAX_LINE_BYTES:
        raise UnwritableEpisode(f"its record has {len(line):,} bytes, more than {MAX_LINE_BYTES:,}")
    return line


def to_json(trajectory: Trajectory) -> bytes:
    """Return the episode as one JSON object. Raises UnwritableEpisode if that would not be read again."""
    try:
        try:
            content = TRAJECTORY.dump_json(trajectory, warnings="error")
            may_be = (trajectory.task.answer, trajectory.reward, trajectory.failure).count(None)
            if content.count(b"null") <= may_be:
                return content  # the writer checks every type but None, which fields have that may not
        except pydantic_core.PydanticSerializationError:
            content = pydantic_core.to_json(trajectory, inf_nan_mode="strings")
    except (pydantic_core.PydanticSerializationError, ValueError) as error:
        raise UnwritableEpisode(f"it cannot be written as JSON: {writable(str(error))}") from error
    try:
        TRAJECTORY.validate_json(content)  # twice the time, so only where it is needed
    except ValidationError as error:
        raise UnwritableEpisode(_first_of(error)) from error
    return content


def parse_line(adapter: TypeAdapter[_T], path: Path, place: int | str, line: bytes) -> _T:
    """Parse a whole line.

    Raises DamagedLine if it is not as it was written, StoreError if it is of a newer version.
    """
    end = len(line) - _CRC_BYTES
    if not ends_with_checksum(line):
        raise DamagedLine(f"{path}:{place}: is damaged: it does not end with its checksum")
    if _crc32(memoryview(line)[:end]) != line[end + len(_CRC_BEGIN) : -len(_CRC_END)]:
        raise DamagedLine(f"{path}:{place}: is damaged: its bytes do not match its checksum")
    try:
        parsed = adapter.validate_json(line)
    except ValidationError as error:
        raise DamagedLine(f"{path}:{place}: {_first_of(error)}") from error
    version = getattr(parsed, "schema_version", SCHEMA_VERSION)
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path}:{place}: schema version {version} is newer than {SCHEMA_VERSION}, the newest known here"
        )
    return parsed


def _first_of(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where + ': ' if where else ''}{first['msg']}"


def ends_with_checksum(line: bytes) -> bool:
    """Return whether a line ends with a checksum, right or wrong."""
    return line.endswith(_CRC_END) and line.startswith(_CRC_BEGIN, max(len(line) - _CRC_BYTES, 0))


def with_checksum(json_object: bytes) -> bytes:
    """Return the line of an object, with its checksum as the last field."""
    body = memoryview(json_object)[:-1]
    return b"".join((body, _CRC_BEGIN, _crc32(body), _CRC_END))


def _crc32(content: memoryview) -> bytes:
    return b"%08x" % zlib.crc32(content)
