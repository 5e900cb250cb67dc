"""The format of a trajectory file: a header line, then one JSON line an episode.

A last line without its newline was torn by a crash and is no episode: readers leave it out, `recover` cuts
it off. Any other line that does not parse is damage, and a StoreError names its file and line. The fields
of a line are those of `types.Trajectory`, in that order.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from rl_agent import files
from rl_agent.errors import StoreError
from rl_agent.types import SCHEMA_VERSION, EpisodeKey, Split, Trajectory


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """First line of a shard: what its episodes have in common."""

    run_id: str
    split: Split
    iteration: int
    seed: int
    model: str
    weight_version: int
    sample_digest: str
    """Digest of the sampled episode keys; a resume must sample the same."""
    created_at: float
    """Seconds since the epoch."""
    attempt: int = 1
    """Which start of the run began the file."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class Recorded:
    """Which episode a line holds; a subset of `Trajectory`, read in a tenth of the time."""

    key: EpisodeKey


_T = TypeVar("_T")
TRAJECTORY = TypeAdapter(Trajectory)
_HEADER = TypeAdapter(ShardHeader)
_RECORDED = TypeAdapter(Recorded)

_BLOCK_BYTES = 1 << 16


def read_shard(path: Path) -> tuple[ShardHeader, Iterator[Trajectory]]:
    """Header and, lazily, the trajectories of a finished or growing shard.

    Raises StoreError that names the file and line, here for the header, while iterating for the rest.
    """
    return read_header(path), read_lines(path, TRAJECTORY)


def read_lines(path: Path, adapter: TypeAdapter[_T], *, size_bytes: int | None = None) -> Iterator[_T]:
    """The episodes as `adapter` sees them, lazily; with `size_bytes` those of the file's first bytes.

    An adapter of fewer fields than `Trajectory` has skips the rest, which is most of the time and memory
    where token ids are not wanted. Raises StoreError that names the file and line.
    """
    for number, line in _whole_lines(path, size_bytes):
        if number > 1:
            yield _parse(adapter, path, number, line)


def read_from(
    path: Path, adapter: TypeAdapter[_T], *, start: int, end: int | None = None
) -> Iterator[tuple[int, _T]]:
    """The episodes of a growing file from byte `start`, where a line begins, each with where its line begins.

    With `end` a line that ends behind it is left out. Raises StoreError that names the file and the byte.
    """
    try:
        with path.open("rb") as file:
            file.seek(start)
            for line in file:
                begin, start = start, start + len(line)
                if not line.endswith(b"\n") or (end is not None and start > end):
                    return
                if begin > 0:  # else it is the header
                    yield begin, _parse(adapter, path, f"byte {begin}", line)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error


def read_header(path: Path) -> ShardHeader:
    """First line of a shard. Raises StoreError where it is missing, broken or of a newer version."""
    first = next(_whole_lines(path), None)
    if first is None:
        raise StoreError(f"{path}: holds no header line")
    return _parse(_HEADER, path, 1, first[1])


def to_line(trajectory: Trajectory) -> bytes:
    """The episode as one line, newline included. Raises StoreError where JSON cannot hold a value."""
    # Non-finite numbers (an engine's -inf logprob) become strings: JSON has no word for them.
    try:
        return pydantic_core.to_json(trajectory, inf_nan_mode="strings") + b"\n"
    except pydantic_core.PydanticSerializationError as error:
        raise StoreError(f"episode {trajectory.key} cannot be written as JSON: {error}") from error


def start_shard(growing: Path, header: ShardHeader) -> None:
    """Begin a file that nobody else has begun. Raises FileExistsError, StoreError if it cannot be written.

    The name is taken first, which one of many nodes can do, and the header put under it whole; so a file
    without a header was begun by a node that died at that instant, and holds nothing.
    """
    try:
        growing.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{growing.parent}: cannot be made: {error.strerror}") from error
    try:
        os.close(os.open(growing, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        raise
    except OSError as error:
        raise StoreError(f"{growing}: cannot be written: {error.strerror}") from error
    put_whole(growing, _HEADER.dump_json(header) + b"\n")


def put_whole(path: Path, content: bytes) -> None:
    """`files.write_whole`. Raises StoreError if that fails."""
    try:
        files.write_whole(path, content)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error


def whole_bytes(path: Path) -> int:
    """Where the last whole line ends."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(0, end - _BLOCK_BYTES)
            file.seek(begin)
            newline = file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
    return 0


def cut_torn_line(growing: Path) -> None:
    """Cut off the disk what follows the last newline."""
    size_bytes = whole_bytes(growing)
    if size_bytes < growing.stat().st_size:
        os.truncate(growing, size_bytes)


def read_undamaged(path: Path) -> tuple[list[EpisodeKey], int]:
    """The episodes before the first line that is torn or damaged, and where that line begins.

    For the file of a node that died: what follows such a line is not relied on.
    """
    keys, size_bytes = [], 0
    for number, line in _whole_lines(path):
        if number > 1:
            try:
                keys.append(_parse(_RECORDED, path, number, line).key)
            except StoreError:
                break
        size_bytes += len(line)
    return keys, size_bytes


def _whole_lines(path: Path, size_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Numbered lines, the newline included; a last line without one was torn and is left out.

    With `size_bytes` a line that ends behind them is left out too, and all that follow it.
    """
    end = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                end += len(line)
                if not line.endswith(b"\n") or (size_bytes is not None and end > size_bytes):
                    return
                yield number, line
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error


def _parse(adapter: TypeAdapter[_T], path: Path, number: int | str, line: bytes) -> _T:
    try:
        parsed = adapter.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"{path}:{number}: {where + ': ' if where else ''}{first['msg']}") from error
    version = getattr(parsed, "schema_version", SCHEMA_VERSION)
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path}:{number}: schema version {version} is newer than {SCHEMA_VERSION}, the newest known here"
        )
    return parsed
