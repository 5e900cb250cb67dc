"""Reads the groups of one iteration while its rollout runs.

    episodes of all ranks, as recorded ─► siblings of each group ─ all there ─► Group, in order of arrival
    manifest ─► groups with missing siblings ─► None

What holds:
- A group comes once, as soon as its last sibling was recorded, whichever files they are in.
- Where it is not streamed, no group comes before the rollout is over: training and rollout take turns.
- Made anew, after a restart, it gives the same groups from the first on; who had them turns them away.
"""

import logging
import time
from collections.abc import Callable

from rl_agent.errors import DeadlineError
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.growing import GrowingIteration
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.trainer.grpo.data.samples import Group, make_group
from rl_agent.types import Trajectory

_log = logging.getLogger(__name__)
_POLL_S = 0.03
"""The time between two looks at the files; they may lie on another machine."""
_PATIENCE_S = 0.5
"""Longest wait of one `take`."""
_LOG_EVERY_S = 60.0


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
        self._iteration = iteration
        self._episodes = GrowingIteration(paths, "train", iteration, TRAJECTORY, run_id=run_id)
        self._group_size = group_size
        self._streamed = streamed
        self._silence_timeout_s = silence_timeout_s
        self._clock = clock
        self._sleep = sleep
        self._unfinished: dict[tuple[str, int], list[Trajectory]] = {}
        self._ready: list[Group] = []
        self._last_episode_at = clock()
        self._logged_at = self._last_episode_at

    def take(self, most: int) -> list[Group] | None:
        """Take up to `most` groups, after a short wait none; None once the iteration has no more.

        Raises StoreError for a damaged file, DeadlineError if nothing is recorded for too long.
        """
        start = self._clock()
        while not self._may_give and not self._episodes.is_over:
            self._read_new()
            if self._may_give or self._episodes.is_over or self._clock() - start >= _PATIENCE_S:
                break
            self._check_silence()
            self._sleep(_POLL_S)
        if not self._may_give:
            return None if self._episodes.is_over else []
        taken, self._ready = self._ready[:most], self._ready[most:]
        return taken

    @property
    def _may_give(self) -> bool:
        return bool(self._ready) and (self._streamed or self._episodes.is_over)

    def _read_new(self) -> None:
        """Read what is new."""
        for trajectory in self._episodes.new():
            self._add(trajectory)
        if self._episodes.is_over:
            self._ready += [make_group(siblings) for siblings in self._unfinished.values()]
            self._unfinished.clear()

    def _add(self, trajectory: Trajectory) -> None:
        self._last_episode_at = self._clock()
        name = (trajectory.key.task_id, trajectory.key.group)
        siblings = self._unfinished.setdefault(name, [])
        siblings.append(trajectory)
        if len(siblings) == self._group_size:
            self._ready.append(make_group(self._unfinished.pop(name)))

    def _check_silence(self) -> None:
        now = self._clock()
        silent_s = now - self._last_episode_at
        if silent_s >= self._silence_timeout_s:
            raise DeadlineError(
                f"iteration {self._iteration}: no episode was recorded in {self._silence_timeout_s:g} s"
            )
        if now - self._logged_at >= _LOG_EVERY_S and silent_s >= _LOG_EVERY_S:
            self._logged_at = now
            waiting = len(self._unfinished)
            _log.info(
                "iteration %d: no episode for %.0f s; %d groups wait for siblings",
                self._iteration,
                silent_s,
                waiting,
            )
