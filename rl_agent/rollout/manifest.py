"""The trajectories of one iteration, whichever and however many nodes wrote them, read as one.

    files, one for each rank and start ─► manifest, written whole and last ─► `.checkpoint` dropped by rename

Nothing is copied. The manifest names the files that count, and how far: a node that died or fell silent may
have left half a line, or may wake up and write on, so its file counts up to the byte at which it was given
up. An episode that two files hold is read from the first. While there is no manifest every file of the
iteration counts, up to its last whole line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from rl_agent.errors import StoreError
from rl_agent.paths import RunPaths, growing_name
from rl_agent.rollout.shard import put_whole, read_lines
from rl_agent.types import EpisodeKey, Split


class ManifestEntry(BaseModel):
    """One file of a finished iteration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    """Its name in the folder of the manifest, without `.checkpoint`."""
    rank: Annotated[int, Field(ge=0)]
    bytes: Annotated[int, Field(ge=0)] | None
    """How far it counts; null: to its end."""
    episodes: Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Part:
    """A trajectory file, as far as it counts."""

    shard: Path
    """Its name without `.checkpoint`."""
    size_bytes: int | None = None
    """None: to its end."""
    episodes: int | None = None
    """How many it must hold at least; None where nobody has counted yet."""

    @property
    def path(self) -> Path:
        """The file as it is called now. Raises StoreError if it is not there."""
        for path in (self.shard, growing_name(self.shard), self.shard):  # it may be renamed meanwhile
            if path.exists():
                return path
        raise StoreError(f"{self.shard}: is missing")


class Keyed(Protocol):
    """What an adapter must read at least."""

    @property
    def key(self) -> EpisodeKey: ...


_T = TypeVar("_T", bound=Keyed)
_MANIFEST = TypeAdapter(list[ManifestEntry])


def parts_of(paths: RunPaths, split: Split, iteration: int) -> list[Part]:
    """The files that hold an iteration, finished or growing.

    Raises StoreError where the manifest cannot be read or names a file that is not there.
    """
    manifest = paths.manifest(split, iteration)
    entries = _read_manifest(manifest)
    if entries is None:
        return [Part(shard) for shard in paths.shards(split, iteration)]
    parts = [Part(manifest.with_name(entry.file), entry.bytes, entry.episodes) for entry in entries]
    for part in parts:
        if not part.shard.exists() and not growing_name(part.shard).exists():
            raise StoreError(f"{part.shard}: is missing; {manifest.name} names it")
    return parts


def read_parts(parts: Sequence[Part], adapter: TypeAdapter[_T]) -> Iterator[_T]:
    """The episodes of an iteration as `adapter` sees them, lazily, each once.

    Raises StoreError that names the file, and the line where one is damaged.
    """
    seen: set[EpisodeKey] | None = set() if len(parts) > 1 else None
    for part in parts:
        for found in _read_part(part, adapter):
            if seen is None:
                yield found
            elif found.key not in seen:
                seen.add(found.key)
                yield found


def read_iteration(paths: RunPaths, split: Split, iteration: int, adapter: TypeAdapter[_T]) -> Iterator[_T]:
    """`read_parts` of `parts_of`."""
    return read_parts(parts_of(paths, split, iteration), adapter)


def write_manifest(paths: RunPaths, split: Split, iteration: int, entries: list[ManifestEntry]) -> None:
    """Finish an iteration: from now on it consists of `entries`. Raises StoreError where that fails."""
    put_whole(paths.manifest(split, iteration), _MANIFEST.dump_json(entries, indent=1) + b"\n")


def _read_manifest(manifest: Path) -> list[ManifestEntry] | None:
    try:
        return _MANIFEST.validate_json(manifest.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise StoreError(f"{manifest}: cannot be read: {' '.join(str(error).split())[:200]}") from error


def _read_part(part: Part, adapter: TypeAdapter[_T]) -> Iterator[_T]:
    path = part.path
    if part.size_bytes is not None and path.stat().st_size < part.size_bytes:
        raise StoreError(f"{path}: is shorter than the {part.size_bytes} bytes that count")
    count = 0
    for found in read_lines(path, adapter, size_bytes=part.size_bytes):
        count += 1
        yield found
    if part.episodes is not None and count < part.episodes:
        raise StoreError(f"{path}: holds {count} of the {part.episodes} episodes that it should")
