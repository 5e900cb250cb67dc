"""Which samples of an iteration share an optimizer step, drawn before any of them is generated.

    keys of an iteration's samples, steps, seed ─► `Deal` ─► for each step the samples that are its own

Taken in order of arrival, the groups of a step are of about equal length, and short ones come first. A deal
is a shuffle of all samples, cut into equal parts: what a step contains depends on the seed alone. A step is
computed as its own groups arrive; an advantage needs all siblings, so a sample comes with its group.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping

from rl_agent.config import Plan
from rl_agent.tasks.load import load_tasks
from rl_agent.tasks.sample import sample_episodes
from rl_agent.trainer.samples import group_key

Dealt = Mapping[str, frozenset[str]]
"""Keys of groups, and of those of their samples that a step trains on."""


class Deal:
    """`steps` parts, numbered from 0, that differ by at most one sample; equal for equal arguments."""

    def __init__(self, groups: Mapping[str, Iterable[str]], *, steps: int, seed: str) -> None:
        """`groups`: keys, each with those of its samples."""
        places = [(group, sample) for group in sorted(groups) for sample in sorted(groups[group])]
        random.Random(seed).shuffle(places)
        self.steps = steps
        self._parts: list[Dealt] = []
        self._last: dict[str, int] = {}
        for step in range(steps):
            part: dict[str, set[str]] = defaultdict(set)
            for group, sample in places[step * len(places) // steps : (step + 1) * len(places) // steps]:
                part[group].add(sample)
                self._last[group] = step
            self._parts.append({group: frozenset(samples) for group, samples in part.items()})

    def part(self, step: int) -> Dealt:
        """What a step trains on; a step that is not of this deal trains on nothing."""
        return self._parts[step] if step < self.steps else {}

    def holds(self, group: str) -> bool:
        return group in self._last

    def is_through(self, group: str, step: int) -> bool:
        """Whether no step after this one trains on the group."""
        return self._last[group] <= step


def samples_of(plan: Plan, iteration: int) -> dict[str, list[str]]:
    """Keys of the groups that the rollout of an iteration asks for, each with those of its samples."""
    config = plan.config
    tasks = load_tasks(config.env_config.tasks_file("train", config.data_path), config.env_config)
    groups: dict[str, list[str]] = defaultdict(list)
    for episode in sample_episodes(tasks, split="train", iteration=iteration, config=config):
        groups[group_key(iteration, episode.key)].append(str(episode.key))
    return groups
