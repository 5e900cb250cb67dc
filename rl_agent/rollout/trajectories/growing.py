"""The episodes of one iteration while its rollout runs: the files of all ranks are read as they grow.

    shards of all ranks ─ whole lines ─► new episodes ─ … ─► manifest ─ up to where files count ─► the rest

What holds:
- An episode comes once, whichever files hold it; one that two hold (its rank was given up, another ran it
  again) counts as it was read first.
- A line without its newline is not read yet; one that its writer cut off again may have been read, and is not
  missed: the episode did happen.
- A damaged line is read again with every look: a shared file system may show what it has not yet got. A line
  still damaged at the iteration's end is left out, or refused if there are many (`manifest.ReadLosses`).
- Files of other runs, which the rollout is about to set aside, are left alone.
"""

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from rl_agent.errors import DamagedLine, StoreError
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.manifest import Keyed, Part, ReadLosses, parts_of
from rl_agent.rollout.trajectories.shard import ByteRange, read_from, read_header
from rl_agent.types import EpisodeKey, Split

_T = TypeVar("_T", bound=Keyed)
_HEADER = ByteRange(0, 0)
"""Stands for the first line among those that are damaged."""


@dataclass(slots=True)
class _Tail:
    """The place up to which a file was read."""

    is_ours: bool = False
    """Its header names this run."""
    damaged: dict[ByteRange, DamagedLine] = field(default_factory=dict)
    """Lines that could not be read so far."""
    size_bytes: int = 0
    """The size of the file when it was read last."""
    last: EpisodeKey | None = None
    """The last episode that was read; it is read again, to see that it was not cut off since."""
    last_byte: int = 0
    """Offset at which its line begins."""


class GrowingIteration(Generic[_T]):
    """Episodes as `adapter` sees them: a subset of `Trajectory`'s fields is read faster."""

    def __init__(
        self,
        paths: RunPaths,
        split: Split,
        iteration: int,
        adapter: TypeAdapter[_T],
        *,
        run_id: str,
        leave_out: Callable[[], Collection[str]] = lambda: (),
    ) -> None:
        """Begin with nothing read; files that `leave_out` names while they grow are not read."""
        self.is_over = False
        """The iteration has its manifest, and all of it was read."""
        self._paths = paths
        self._place: tuple[Split, int] = (split, iteration)
        self._adapter = adapter
        self._run_id = run_id
        self._leave_out = leave_out
        self._tails: dict[Path, _Tail] = {}
        self._seen: set[EpisodeKey] = set()

    def new(self) -> Iterator[_T]:
        """Return what was recorded since the last time, to be read to its end.

        Raises StoreError for an iteration that is over and too much of it is damaged.
        """
        # The end is looked for first: what is read then is all there is.
        split, iteration = self._place
        is_over = self._paths.is_finished(split, iteration)
        parts = parts_of(self._paths, split, iteration) if is_over else list(map(Part, self._shards()))
        for part in parts:
            for episode in self._new_of(part, is_over=is_over):
                if episode.key not in self._seen:
                    self._seen.add(episode.key)
                    yield episode
        if is_over:
            self._account(parts)
        self.is_over = is_over

    def _account(self, parts: list[Part]) -> None:
        losses = ReadLosses(parts)
        for part in parts:
            for span, damage in self._tails[part.shard].damaged.items():
                if part.size_bytes is None or span.end <= part.size_bytes:
                    losses.add(damage)

    def _shards(self) -> list[Path]:
        left_out = self._leave_out()
        return [shard for shard in self._paths.shards(*self._place) if shard.name not in left_out]

    def _new_of(self, part: Part, *, is_over: bool) -> list[_T]:
        tail = self._tails.setdefault(part.shard, _Tail())
        try:
            new = self._read(part, tail, is_over=is_over)
        except (StoreError, FileNotFoundError):
            if not is_over and part.shard not in self._shards():
                return []  # it was set aside meanwhile
            new = None  # it was renamed between two calls, or a line was cut off behind which it goes on
        if new is None:
            tail.last, tail.last_byte, tail.size_bytes = None, 0, 0
            tail.damaged.clear()
            new = self._read(part, tail, is_over=is_over)
        return new or []

    def _read(self, part: Part, tail: _Tail, *, is_over: bool) -> list[_T] | None:
        """Return what follows the last line that was read; None if that line is not there any more."""
        path = part.path
        size_bytes = _size_of(path)
        if is_over and size_bytes < (part.size_bytes or 0):
            raise StoreError(f"{path}: is shorter than the {part.size_bytes} bytes that count")
        if not tail.is_ours and not self._is_begun(path, tail, size_bytes, is_over=is_over):
            return []
        mended = self._read_again(path, tail)
        if size_bytes == tail.size_bytes:
            return mended
        lines = read_from(
            path,
            self._adapter,
            start=tail.last_byte,
            end=part.size_bytes,
            on_damage=tail.damaged.__setitem__,
        )
        episodes = list(lines)
        tail.size_bytes = size_bytes
        if tail.last is not None:
            if not episodes or episodes[0][1].key != tail.last:
                return None if part.size_bytes is None or part.size_bytes > tail.last_byte else mended
            episodes = episodes[1:]
        if episodes:
            span, last = episodes[-1]
            tail.last_byte, tail.last = span.begin, last.key
        return mended + [episode for _, episode in episodes]

    def _is_begun(self, path: Path, tail: _Tail, size_bytes: int, *, is_over: bool) -> bool:
        """Return whether the file is of this run, as far as its header is there."""
        if size_bytes == 0:  # it is begun with its name alone; its header comes whole, but later
            return False
        try:
            header = read_header(path)
        except DamagedLine as damage:
            tail.damaged[_HEADER] = damage
            return is_over
        tail.damaged.pop(_HEADER, None)
        tail.is_ours = is_over or header.run_id == self._run_id
        return tail.is_ours

    def _read_again(self, path: Path, tail: _Tail) -> list[_T]:
        """Read again the lines that were damaged; returns the episodes of those that are not any more."""
        mended: list[_T] = []
        for span in [span for span in tail.damaged if span != _HEADER]:
            damaged: dict[ByteRange, DamagedLine] = {}
            lines = read_from(
                path,
                self._adapter,
                start=span.begin,
                end=span.end,
                on_damage=damaged.__setitem__,
            )
            episodes = [episode for _, episode in lines]
            if episodes and not damaged:
                del tail.damaged[span]
            mended += episodes
        return mended


def _size_of(path: Path) -> int:
    """Return the size of the file, opened: a shared file system may tell an old one of one that is not."""
    with path.open("rb") as file:
        return file.seek(0, os.SEEK_END)
