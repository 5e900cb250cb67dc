"""Reads the groups of a recorded run, as if they were just finished."""

from collections.abc import Iterator

from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from rl_agent.trainer.grpo.data.samples import Group, make_group
from rl_agent.trainer.grpo.settings import ReplaySettings
from rl_agent.types import Trajectory


class RecordedGroups:
    """A source of groups: the training episodes of some iterations, in the order they were recorded."""

    def __init__(self, settings: ReplaySettings) -> None:
        self._groups = _groups(settings)

    def take(self, most: int) -> list[Group] | None:
        """Take the next groups, up to `most`; None after the last. Raises StoreError for a damaged file."""
        return [group for _, group in zip(range(most), self._groups, strict=False)] or None


def _groups(settings: ReplaySettings) -> Iterator[Group]:
    """Yield each group after its last episode; those with missing episodes at their iteration's end."""
    paths = RunPaths(settings.log_path)
    for iteration in settings.iterations:
        unfinished: dict[tuple[str, int], list[Trajectory]] = {}
        for trajectory in read_iteration(paths, "train", iteration, TRAJECTORY):
            name = (trajectory.key.task_id, trajectory.key.group)
            siblings = unfinished.setdefault(name, [])
            siblings.append(trajectory)
            if len(siblings) == settings.group_size:
                yield make_group(unfinished.pop(name))
        yield from map(make_group, unfinished.values())
