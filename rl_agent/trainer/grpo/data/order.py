"""Divides the samples of an iteration among its optimizer steps: as they arrive, or by a shuffle of all.

    `ArrivalOrder`   a step takes whole groups as they come, until it has its share of them
    `ShuffledOrder`  keys of an iteration's samples, steps, seed ─► for each step the samples that are its own

Taken in order of arrival, the groups of a step are of about equal length, and short ones come first. A
shuffle is drawn before any sample is generated and cut into equal parts: a step's samples depend on the seed
alone. A step is computed as its own groups arrive; an advantage needs all siblings, so a sample comes with
its group.
"""

import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from rl_agent.config.plan import Plan
from rl_agent.tasks.load import load_tasks
from rl_agent.tasks.sample import sample_episodes
from rl_agent.trainer.grpo.data.samples import Group, group_key

StepSamples = Mapping[str, frozenset[str]]
"""Keys of groups, and of those of their samples that a step trains on."""


class StepOrder(ABC):
    """Decides which step of an iteration, numbered from 0, trains on what; by default on whole groups.

    `settled` are groups that a step need not wait for.
    """

    def contains(self, group: str) -> bool:
        """Return whether any step trains on the group."""
        return True

    def share(self, group: Group, step: int) -> Group | None:
        """Choose the samples of the group that the step trains on; None: it trains on none."""
        return group

    def is_last_step(self, group: str, step: int) -> bool:
        """Return whether no later step trains on any sample of a group that came to this one."""
        return True

    @abstractmethod
    def is_complete(self, step: int, taken: int, settled: Collection[str]) -> bool:
        """Return whether a step that has taken so many groups has all that it is to have."""

    def is_void(self, step: int, settled: Collection[str], *, is_over: bool) -> bool:
        """Return whether a step that has taken nothing is skipped, as none of its own groups will come."""
        return False


class ArrivalOrder(StepOrder):
    """Whole groups as they come: `groups` make `steps` steps that differ by at most one group."""

    def __init__(self, groups: int, steps: int) -> None:
        self._groups = groups
        self._steps = min(steps, groups)  # a step has at least one group

    def size(self, step: int) -> int:
        """Return the number of groups of a step; more than were expected make further steps alike."""
        return (step + 1) * self._groups // self._steps - step * self._groups // self._steps

    def is_complete(self, step: int, taken: int, settled: Collection[str]) -> bool:
        return taken == self.size(step)


class ShuffledOrder(StepOrder):
    """All samples in `steps` parts that differ by at most one sample; equal for equal arguments."""

    def __init__(self, groups: Mapping[str, Iterable[str]], *, steps: int, seed: str) -> None:
        """Shuffle samples; `groups` has their keys by those of their groups."""
        places = [(group, sample) for group in sorted(groups) for sample in sorted(groups[group])]
        random.Random(seed).shuffle(places)
        self._parts: list[StepSamples] = []
        self._last: dict[str, int] = {}
        for step in range(steps):
            part: dict[str, set[str]] = defaultdict(set)
            for group, sample in places[step * len(places) // steps : (step + 1) * len(places) // steps]:
                part[group].add(sample)
                self._last[group] = step
            self._parts.append({group: frozenset(samples) for group, samples in part.items()})

    def part(self, step: int) -> StepSamples:
        """Return what a step trains on; a step beyond the last one trains on nothing."""
        return self._parts[step] if step < len(self._parts) else {}

    def contains(self, group: str) -> bool:
        return group in self._last

    def share(self, group: Group, step: int) -> Group | None:
        chosen = self.part(step).get(group.key, frozenset())
        share = replace(group, chosen=chosen)
        return share if share.trained else None  # of its samples there, some may have failed

    def is_last_step(self, group: str, step: int) -> bool:
        return self._last[group] <= step

    def is_complete(self, step: int, taken: int, settled: Collection[str]) -> bool:
        return taken > 0 and self._is_settled(step, settled)

    def is_void(self, step: int, settled: Collection[str], *, is_over: bool) -> bool:
        return step < len(self._parts) and (is_over or self._is_settled(step, settled))

    def _is_settled(self, step: int, settled: Collection[str]) -> bool:
        return all(key in settled for key in self.part(step))


def samples_of(plan: Plan, iteration: int) -> dict[str, list[str]]:
    """List the keys of the groups of an iteration's rollout, each with those of its samples."""
    config = plan.config
    tasks = load_tasks(plan.tasks_file("train"), config.env_config)
    groups: dict[str, list[str]] = defaultdict(list)
    for episode in sample_episodes(tasks, split="train", iteration=iteration, config=config):
        groups[group_key(iteration, episode.key)].append(str(episode.key))
    return groups
