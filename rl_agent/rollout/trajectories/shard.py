"""The format of a trajectory file: a header line, then one JSON line per episode.

Each line ends with its checksum (`rollout.line`), which is compared whenever it is read. A last line without
its newline was torn by a crash and is no episode: readers of a growing file leave it out, a resume cuts it
off. Any other line that is not as it was written is damage: a DamagedLine names its file and line, and the
lines around it are read all the same.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

from pydantic import TypeAdapter

from rl_agent.errors import DamagedLine, StoreError
from rl_agent.rollout.trajectories.line import (
    TRAJECTORY,
    parse_line,
    with_checksum,
)
from rl_agent.system import files
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
    """Number of the run's start that began the file."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class Recorded:
    """The key of a line's episode; a subset of `Trajectory`, read in a tenth of the time."""

    key: EpisodeKey


_T = TypeVar("_T")
_HEADER = TypeAdapter(ShardHeader)
_RECORDED = TypeAdapter(Recorded)

_BLOCK_BYTES = 1 << 16


def _refuse(damage: DamagedLine) -> NoReturn:
    raise damage


OnDamage = Callable[[DamagedLine], None]
"""Is given each damaged line, which is left out if it returns."""


def read_shard(path: Path) -> tuple[ShardHeader, Iterator[Trajectory]]:
    """Header and, lazily, the trajectories of a finished or growing shard.

    Raises StoreError that names the file and line, here for the header, while iterating for the rest.
    """
    return read_header(path), read_lines(path, TRAJECTORY)


def read_lines(
    path: Path,
    adapter: TypeAdapter[_T],
    *,
    size_bytes: int | None = None,
    may_be_torn: bool = True,
    on_damage: OnDamage = _refuse,
) -> Iterator[_T]:
    """Return the episodes as `adapter` sees them, lazily; with `size_bytes` those of the file's first bytes.

    An adapter of fewer fields than `Trajectory` has skips the rest, which is most of the time and memory
    where token ids are not wanted. A torn last line is left out unless it may not be there.
    Raises StoreError that names the file, if it cannot be read or is of a newer version.
    """
    for number, line in _numbered_lines(path, size_bytes):
        is_torn = not line.endswith(b"\n")
        if is_torn and may_be_torn:
            return
        try:
            if is_torn:
                raise DamagedLine(f"{path}:{number}: is torn, although the file is finished")
            if number == 1:
                parse_line(_HEADER, path, 1, line)
                continue
            episode = parse_line(adapter, path, number, line)
        except DamagedLine as damage:
            on_damage(damage)
        else:
            yield episode


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A range of bytes in a file."""

    begin: int
    end: int


def read_from(
    path: Path,
    adapter: TypeAdapter[_T],
    *,
    start: int,
    end: int | None = None,
    on_damage: Callable[[ByteRange, DamagedLine], None],
) -> Iterator[tuple[ByteRange, _T]]:
    """Yield the episodes of a growing file from byte `start`, where a line begins, each with its span.

    With `end` a line that ends behind it is left out. Raises StoreError that names the file, if it cannot be
    read or is of a newer version.
    """
    try:
        with path.open("rb") as file:
            file.seek(start)
            for line in file:
                span = ByteRange(start, start + len(line))
                if not line.endswith(b"\n") or (end is not None and span.end > end):
                    return
                start = span.end
                if span.begin == 0:  # the header
                    continue
                try:
                    episode = parse_line(adapter, path, f"byte {span.begin}", line)
                except DamagedLine as damage:
                    on_damage(span, damage)
                else:
                    yield span, episode
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error


def read_header(path: Path) -> ShardHeader:
    """First line of a shard. Raises StoreError where it is missing, damaged or of a newer version."""
    first = next(_numbered_lines(path), None)
    if first is None or not first[1].endswith(b"\n"):
        raise StoreError(f"{path}: holds no header line")
    return parse_line(_HEADER, path, 1, first[1])


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
    put_whole(growing, with_checksum(_HEADER.dump_json(header)))


def put_whole(path: Path, content: bytes) -> None:
    """Write a file whole. Raises StoreError if that fails."""
    try:
        files.write_whole(path, content)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error


def whole_bytes(path: Path) -> int:
    """Return where the last whole line ends."""
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
    """Return the episodes before the first line that is torn or damaged, and where that line begins.

    For the file of a node that died: what follows such a line is not relied on.
    """
    keys: list[EpisodeKey] = []
    size_bytes = 0
    for number, line in _numbered_lines(path):
        try:
            if not line.endswith(b"\n"):
                break
            if number == 1:
                parse_line(_HEADER, path, 1, line)
            else:
                keys.append(parse_line(_RECORDED, path, number, line).key)
        except DamagedLine:
            break
        size_bytes += len(line)
    return keys, size_bytes


def _numbered_lines(path: Path, size_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the lines, numbered from 1, with the newline, which a last line may lack.

    With `size_bytes` a line that ends behind them is left out, and all that follow it.
    """
    end = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                end += len(line)
                if size_bytes is not None and end > size_bytes:
                    return
                yield number, line
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
