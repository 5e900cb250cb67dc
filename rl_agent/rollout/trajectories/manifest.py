"""The trajectories of one iteration, whichever and however many nodes wrote them, read as one.

    files, one for each rank and start ─► manifest, written whole and last ─► `.checkpoint` dropped by rename

Nothing is copied. The manifest names the files that count, and how far: a node that died or fell silent may
have left half a line, or may wake up and write on, so its file counts up to the byte at which it was given
up. An episode that two files hold is read from the first. While there is no manifest every file of the
iteration counts, up to its last whole line.

What of a finished iteration cannot be read is named and left out, and refused where it is more than
`MAX_LOST_SHARE` (`ReadLosses`): a hole in a file is damage, the torn last line of one that grows is not.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from rl_agent.errors import DamagedLine, StoreError, in_one_line
from rl_agent.paths import RunPaths, growing_name
from rl_agent.rollout.trajectories.shard import put_whole, read_lines
from rl_agent.types import EpisodeKey, Split

MAX_LOST_SHARE = 0.01
"""The share of a finished iteration's episodes that may be unreadable before its readers fail."""


class ManifestEntry(BaseModel):
    """One file of a finished iteration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Annotated[str, Field(pattern=r"^[^/.\x00][^/\x00]*$")]
    """Its name in the folder of the manifest, without `.checkpoint`."""
    rank: Annotated[int, Field(ge=0)]
    bytes: Annotated[int, Field(ge=0)] | None
    """Bytes that count; null: all."""
    episodes: Annotated[int, Field(ge=0)]
    damaged: Annotated[int, Field(ge=0)] = 0
    """Lines in it that could not be read when its episodes were counted."""


@dataclass(frozen=True, slots=True)
class Part:
    """A trajectory file, as far as it counts."""

    shard: Path
    """Its name without `.checkpoint`."""
    size_bytes: int | None = None
    """None: to its end."""
    episodes: int | None = None
    """Episodes that it must hold at least; None where nobody has counted yet."""
    damaged: int = 0
    """Lines that could not be read when they were counted."""
    is_growing: bool = True
    """Its last line may be torn, and what is damaged in it may be run again."""

    @classmethod
    def of(cls, manifest: Path, entry: ManifestEntry) -> "Part":
        shard = manifest.with_name(entry.file)
        return cls(shard, entry.bytes, entry.episodes, entry.damaged, is_growing=False)

    @property
    def path(self) -> Path:
        """Return the file as it is called now. Raises StoreError if it is not there."""
        for path in (self.shard, growing_name(self.shard), self.shard):  # it may be renamed meanwhile
            if path.exists():
                return path
        raise StoreError(f"{self.shard}: is missing")


class Keyed(Protocol):
    """The field that an adapter must read at least."""

    @property
    def key(self) -> EpisodeKey: ...


_T = TypeVar("_T", bound=Keyed)
_MANIFEST = TypeAdapter(list[ManifestEntry])


_log = logging.getLogger(__name__)


class ReadLosses:
    """Counts what of an iteration cannot be read, as a reader of it comes upon it."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.damaged = 0
        """Lines."""
        self.missing = 0
        """Episodes, of those that were counted when the iteration was finished."""
        self._is_open = any(part.is_growing for part in parts)
        self._episodes = sum(part.episodes or 0 for part in parts)
        self._known = sum(part.damaged for part in parts)

    def add(self, damage: DamagedLine) -> None:
        """Name it and go on. Raises StoreError if the iteration is finished and this is too much of it."""
        self.damaged += 1
        _log.warning("%s; the line is left out", damage)
        self._check(self.damaged - self._known, str(damage))

    def add_missing(self, part: Part, count: int) -> None:
        """Count what a file holds less than was counted before. Raises like `add`."""
        episodes = part.episodes or 0
        self.missing += max(episodes - count, 0)
        self._check(self.missing, f"{part.path}: holds {count} of the {episodes} episodes that it should")

    def _check(self, lost: int, reason: str) -> None:
        if lost > 0 and not self._is_open and lost > MAX_LOST_SHARE * self._episodes:
            raise StoreError(
                f"{reason}; no more than {MAX_LOST_SHARE:.0%} of a finished iteration are left out unasked:"
                " `trajectories verify` lists what is damaged, with --accept-loss the rest counts"
            )


def parts_of(paths: RunPaths, split: Split, iteration: int) -> list[Part]:
    """Return the files that hold an iteration, finished or growing.

    Raises StoreError where the manifest is gone, cannot be read or names a file that is not there.
    """
    manifest = paths.manifest(split, iteration)
    entries = read_manifest(manifest)
    if entries is None:
        shards = paths.shards(split, iteration)
        finished = [shard for shard in shards if shard.exists()]
        entries = read_manifest(manifest) if finished else None  # it may have been finished meanwhile
    if entries is None:
        if finished:
            raise StoreError(
                f"{manifest}: is missing, though {finished[0].name} is finished: how much it should hold is"
                " not known; put it back, or `trajectories verify --accept-loss` makes one of what is there"
            )
        return [Part(shard) for shard in shards]
    parts = [Part.of(manifest, entry) for entry in entries]
    for part in parts:
        if not part.shard.exists() and not growing_name(part.shard).exists():
            raise StoreError(f"{part.shard}: is missing; {manifest.name} names it")
    return parts


def read_parts(
    parts: Sequence[Part], adapter: TypeAdapter[_T], losses: ReadLosses | None = None
) -> Iterator[_T]:
    """Return the episodes of an iteration as `adapter` sees them, lazily, each once.

    What cannot be read is left out and counted in `losses`. Raises StoreError that names the file, and the
    line where one is damaged, once it is too much.
    """
    losses = losses or ReadLosses(parts)
    seen: set[EpisodeKey] | None = set() if len(parts) > 1 else None
    for part in parts:
        for episode in _read_part(part, adapter, losses):
            if seen is None:
                yield episode
            elif episode.key not in seen:
                seen.add(episode.key)
                yield episode


def read_iteration(paths: RunPaths, split: Split, iteration: int, adapter: TypeAdapter[_T]) -> Iterator[_T]:
    """Read all episodes of an iteration: `read_parts` of `parts_of`."""
    return read_parts(parts_of(paths, split, iteration), adapter)


def write_manifest(paths: RunPaths, split: Split, iteration: int, entries: list[ManifestEntry]) -> None:
    """Finish an iteration: from now on it consists of `entries`. Raises StoreError where that fails."""
    put_whole(paths.manifest(split, iteration), _MANIFEST.dump_json(entries, indent=1) + b"\n")


def read_manifest(manifest: Path) -> list[ManifestEntry] | None:
    """Read a manifest; None if there is none. Raises StoreError if it cannot be read."""
    try:
        return _MANIFEST.validate_json(manifest.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise StoreError(f"{manifest}: cannot be read: {in_one_line(error)}") from error


def _read_part(part: Part, adapter: TypeAdapter[_T], losses: ReadLosses) -> Iterator[_T]:
    path = part.path
    if part.size_bytes is not None and path.stat().st_size < part.size_bytes:
        raise StoreError(
            f"{path}: is shorter than the {part.size_bytes} bytes that count; `trajectories verify` lists"
            " what is missing, with --accept-loss the rest counts"
        )
    may_be_torn = part.is_growing or part.episodes is not None  # what was counted will tell
    lines = read_lines(
        path, adapter, size_bytes=part.size_bytes, may_be_torn=may_be_torn, on_damage=losses.add
    )
    count = 0
    for episode in lines:
        count += 1
        yield episode
    if part.episodes is not None and count < part.episodes:
        losses.add_missing(part, count)
