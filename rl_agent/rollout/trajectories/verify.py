"""Checks what a run has recorded: lines and images against checksums, every file against its manifest.

Nothing is changed, unless a loss is accepted: then the iteration's manifest is written anew from what can be
read, and its readers are content with that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rl_agent.errors import DamagedLine, StoreError
from rl_agent.paths import RunPaths, rank_of
from rl_agent.rollout.trajectories.images import recorded_image
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import (
    ManifestEntry,
    Part,
    parts_of,
    read_manifest,
    write_manifest,
)
from rl_agent.rollout.trajectories.shard import read_lines, whole_bytes
from rl_agent.types import Split, Trajectory


@dataclass(slots=True)
class FileCheck:
    """The findings about one file."""

    split: Split
    iteration: int
    file: Path
    is_finished: bool
    expected: int | None = None
    """Episodes that were counted when the iteration was finished."""
    known_damaged: int = 0
    """Damaged lines that were counted then."""
    episodes: int = 0
    damaged: list[str] = field(default_factory=list)
    """Each damaged line: where, and what is wrong."""
    lost_images: list[str] = field(default_factory=list)
    """Images of its episodes that are gone, or are not what was seen."""
    problem: str = ""
    """Faults of the file as a whole."""

    @property
    def missing(self) -> int:
        return max((self.expected or 0) - self.episodes, 0)

    @property
    def is_whole(self) -> bool:
        is_whole = not self.problem and not self.missing and len(self.damaged) <= self.known_damaged
        return is_whole and not self.lost_images


def check(paths: RunPaths, split: Split, iteration: int) -> Iterator[FileCheck]:
    """Return every file of an iteration, finished or growing."""
    is_finished = paths.is_finished(split, iteration)
    try:
        parts = parts_of(paths, split, iteration)
    except StoreError as error:
        manifest = paths.manifest(split, iteration)
        yield FileCheck(split, iteration, manifest, is_finished, problem=str(error))
        parts = _parts_there(paths, split, iteration)
    for part in parts:
        yield _check_file(FileCheck(split, iteration, part.shard, is_finished), part, paths.images)


def accept(paths: RunPaths, split: Split, iteration: int) -> None:
    """Accept what can be read as all that a finished iteration holds. Raises StoreError if that fails."""
    entries = []
    for part in _parts_there(paths, split, iteration):
        result = _check_file(FileCheck(split, iteration, part.shard, is_finished=True), part, paths.images)
        size_bytes = whole_bytes(part.path)
        entries.append(
            ManifestEntry(
                file=part.shard.name,
                rank=rank_of(part.shard),
                bytes=size_bytes if part.size_bytes is None else min(size_bytes, part.size_bytes),
                episodes=result.episodes,
                damaged=len(result.damaged),
            )
        )
    write_manifest(paths, split, iteration, entries)


def _parts_there(paths: RunPaths, split: Split, iteration: int) -> list[Part]:
    """Return the files that are there, of those that the manifest names, or else of all."""
    manifest = paths.manifest(split, iteration)
    try:
        entries = read_manifest(manifest)
    except StoreError:
        entries = None
    shards = paths.shards(split, iteration)
    if entries is None:
        return [Part(shard) for shard in shards]
    return [part for part in (Part.of(manifest, entry) for entry in entries) if part.shard in shards]


def _check_file(check: FileCheck, part: Part, images: Path) -> FileCheck:
    check.expected, check.known_damaged = part.episodes, part.damaged
    path = part.path
    if part.size_bytes is not None and path.stat().st_size < part.size_bytes:
        check.problem = f"{path}: holds {path.stat().st_size} of the {part.size_bytes} bytes that count"

    def keep(damage: DamagedLine) -> None:
        check.damaged.append(str(damage))

    may_be_torn = part.is_growing or part.episodes is not None
    episodes: Iterator[Trajectory] = read_lines(
        path, TRAJECTORY, size_bytes=part.size_bytes, may_be_torn=may_be_torn, on_damage=keep
    )
    intact: set[str] = set()  # siblings share images: each is read once
    try:
        for episode in episodes:
            check.episodes += 1
            seen = {path: None for step in episode.steps for path in step.observation.images}
            lost = [path for path in seen if path not in intact and recorded_image(path, images) is None]
            intact.update(seen.keys() - lost)
            check.lost_images += lost
    except StoreError as error:
        check.problem = str(error)
    return check
