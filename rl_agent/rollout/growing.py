"""The episodes of one iteration while its rollout runs: the files of all ranks are read as they grow.

    shards of all ranks ─ whole lines ─► new episodes ─ … ─► manifest ─ up to where files count ─► the rest

What holds:
- An episode comes once, whichever files hold it; one that two hold (its rank was given up, another ran it
  again) counts as it was read first.
- A line without its newline is not read yet; one that its writer cut off again may have been read, and is not
  missed: the episode did happen.
- Files of other runs, which the rollout is about to set aside, are left alone.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from rl_agent.errors import StoreError
from rl_agent.paths import RunPaths
from rl_agent.rollout.manifest import Keyed, Part, parts_of
from rl_agent.rollout.shard import read_from, read_header
from rl_agent.types import EpisodeKey, Split

_T = TypeVar("_T", bound=Keyed)


@dataclass(slots=True)
class _Tail:
    """How far a file was read."""

    is_ours: bool = False
    """Its header names this run."""
    size_bytes: int = 0
    """Of the file, when it was read last."""
    last: EpisodeKey | None = None
    """The last episode that was read; it is read again, to see that it was not cut off since."""
    last_byte: int = 0
    """Where its line begins."""


class GrowingIteration(Generic[_T]):
    """Episodes as `adapter` sees them: a subset of `Trajectory`'s fields is read faster."""

    def __init__(
        self, paths: RunPaths, split: Split, iteration: int, adapter: TypeAdapter[_T], *, run_id: str
    ) -> None:
        self.is_over = False
        """The iteration has its manifest, and all of it was read."""
        self._paths = paths
        self._place: tuple[Split, int] = (split, iteration)
        self._adapter = adapter
        self._run_id = run_id
        self._tails: dict[Path, _Tail] = {}
        self._seen: set[EpisodeKey] = set()

    def new(self) -> Iterator[_T]:
        """What was recorded since the last time, to be read to its end. Raises StoreError for damage."""
        # The end is looked for first: what is read then is all there is.
        split, iteration = self._place
        is_over = iteration in self._paths.iterations(split)
        parts = parts_of(self._paths, split, iteration) if is_over else list(map(Part, self._shards()))
        for part in parts:
            for episode in self._new_of(part, is_over=is_over):
                if episode.key not in self._seen:
                    self._seen.add(episode.key)
                    yield episode
        self.is_over = is_over

    def _shards(self) -> list[Path]:
        return self._paths.shards(*self._place)

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
            new = self._read(part, tail, is_over=is_over)
        return new or []

    def _read(self, part: Part, tail: _Tail, *, is_over: bool) -> list[_T] | None:
        """What follows the last line that was read; None if that line is not there any more."""
        path = part.path
        size_bytes = _size_of(path)
        if not tail.is_ours and not is_over:
            # A file is begun with its name alone; its header comes whole, but later.
            if size_bytes == 0 or read_header(path).run_id != self._run_id:
                return []
            tail.is_ours = True
        if size_bytes == tail.size_bytes:
            return []
        found = list(read_from(path, self._adapter, start=tail.last_byte, end=part.size_bytes))
        tail.size_bytes = size_bytes
        if tail.last is not None:
            if not found or found[0][1].key != tail.last:
                return None if part.size_bytes is None or part.size_bytes > tail.last_byte else []
            found = found[1:]
        if found:
            tail.last_byte, last = found[-1]
            tail.last = last.key
        return [episode for _, episode in found]


def _size_of(path: Path) -> int:
    """Of the file, opened: a shared file system may tell an old size of one that is not."""
    with path.open("rb") as file:
        return file.seek(0, os.SEEK_END)
