"""The groups of one iteration while its rollout runs: its files are read as they grow.

    shards of all ranks ─ whole lines ─► siblings of each group ─ all recorded ─► Group, in order of arrival
    manifest ─► what is left of the files, up to where they count ─► groups with missing siblings ─► None

What holds:
- A group comes once, as soon as its last sibling was recorded, whichever files they are in. An episode that
  two files hold (its rank was given up, another ran it again) counts as it was read first.
- A line without its newline is not read yet; one that its writer cut off again may have been read, and is not
  missed: the episode did happen.
- Files of other runs, which the rollout is about to set aside, are left alone.
- Where it is not streamed, no group comes before the rollout is over: training and rollout take turns.
- Made anew, after a restart, it gives the same groups from the first on; who had them turns them away.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rl_agent.errors import DeadlineError, StoreError
from rl_agent.paths import RunPaths
from rl_agent.rollout.manifest import Part, parts_of
from rl_agent.rollout.shard import TRAJECTORY, read_from, read_header
from rl_agent.trainer.samples import Group, make_group
from rl_agent.types import EpisodeKey, Trajectory

_log = logging.getLogger(__name__)
_LOOK_S = 0.1
"""Between two looks at the files; they may lie on another machine."""
_PATIENCE_S = 0.5
"""Longest wait of one `take`."""
_SAY_EVERY_S = 60.0


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


class LiveIteration:
    """A source of groups: the training episodes of one iteration of a run that goes on meanwhile."""

    def __init__(
        self,
        paths: RunPaths,
        iteration: int,
        *,
        run_id: str,
        group_size: int,
        streamed: bool = True,
        silence_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._paths = paths
        self._iteration = iteration
        self._run_id = run_id
        self._group_size = group_size
        self._streamed = streamed
        self._silence_timeout_s = silence_timeout_s
        self._clock = clock
        self._sleep = sleep
        self._tails: dict[Path, _Tail] = {}
        self._seen: set[EpisodeKey] = set()
        self._unfinished: dict[tuple[str, int], list[Trajectory]] = {}
        self._ready: list[Group] = []
        self._is_over = False
        self._heard_at = clock()
        self._said_at = self._heard_at

    def take(self, most: int) -> list[Group] | None:
        """Up to `most` groups, after a short wait none; None once the iteration has no more.

        Raises StoreError for a damaged file, DeadlineError if nothing is recorded for too long.
        """
        asked = self._clock()
        while not self._may_give and not self._is_over:
            self._look()
            if self._may_give or self._is_over or self._clock() - asked >= _PATIENCE_S:
                break
            self._check_silence()
            self._sleep(_LOOK_S)
        if not self._may_give:
            return None if self._is_over else []
        taken, self._ready = self._ready[:most], self._ready[most:]
        return taken

    @property
    def _may_give(self) -> bool:
        return bool(self._ready) and (self._streamed or self._is_over)

    def _look(self) -> None:
        """Read what is new. The iteration's end is looked for first: what is read then is all there is."""
        is_over = self._iteration in self._paths.iterations("train")
        if is_over:
            parts = parts_of(self._paths, "train", self._iteration)
        else:
            parts = [Part(shard) for shard in self._paths.shards("train", self._iteration)]
        for part in parts:
            for trajectory in self._new_of(part, is_over=is_over):
                self._add(trajectory)
        if is_over:
            self._ready += [make_group(siblings) for siblings in self._unfinished.values()]
            self._unfinished.clear()
            self._is_over = True

    def _new_of(self, part: Part, *, is_over: bool) -> list[Trajectory]:
        tail = self._tails.setdefault(part.shard, _Tail())
        try:
            new = self._read(part, tail, is_over=is_over)
        except (StoreError, FileNotFoundError):
            if not is_over and part.shard not in self._paths.shards("train", self._iteration):
                return []  # it was set aside meanwhile
            new = None  # it was renamed between two calls, or a line was cut off behind which it goes on
        if new is None:
            tail.last, tail.last_byte, tail.size_bytes = None, 0, 0
            new = self._read(part, tail, is_over=is_over)
        return new or []

    def _read(self, part: Part, tail: _Tail, *, is_over: bool) -> list[Trajectory] | None:
        """What follows the last line that was read; None if that line is not there any more."""
        path = part.path
        size_bytes = path.stat().st_size
        if not tail.is_ours and not is_over:
            # A file is begun with its name alone; its header comes whole, but later.
            if size_bytes == 0 or read_header(path).run_id != self._run_id:
                return []
            tail.is_ours = True
        if size_bytes == tail.size_bytes:
            return []
        found = list(read_from(path, TRAJECTORY, start=tail.last_byte, end=part.size_bytes))
        tail.size_bytes = size_bytes
        if tail.last is not None:
            if not found or found[0][1].key != tail.last:
                return None if part.size_bytes is None or part.size_bytes > tail.last_byte else []
            found = found[1:]
        if found:
            tail.last_byte, last = found[-1]
            tail.last = last.key
        return [trajectory for _, trajectory in found]

    def _add(self, trajectory: Trajectory) -> None:
        if trajectory.key in self._seen:
            return
        self._seen.add(trajectory.key)
        self._heard_at = self._clock()
        name = (trajectory.key.task_id, trajectory.key.group)
        siblings = self._unfinished.setdefault(name, [])
        siblings.append(trajectory)
        if len(siblings) == self._group_size:
            self._ready.append(make_group(self._unfinished.pop(name)))

    def _check_silence(self) -> None:
        now = self._clock()
        silent_s = now - self._heard_at
        if silent_s >= self._silence_timeout_s:
            raise DeadlineError(
                f"iteration {self._iteration}: no episode was recorded in {self._silence_timeout_s:g} s"
            )
        if now - self._said_at >= _SAY_EVERY_S and silent_s >= _SAY_EVERY_S:
            self._said_at = now
            waiting = len(self._unfinished)
            _log.info(
                "iteration %d: no episode for %.0f s; %d groups wait for siblings",
                self._iteration,
                silent_s,
                waiting,
            )
