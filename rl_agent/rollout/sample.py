"""The work of a rollout: its assignment, the sampled episodes, and which of them are recorded."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rl_agent.config.plan import Config, Plan
from rl_agent.errors import StoreError
from rl_agent.tasks.load import load_tasks
from rl_agent.tasks.sample import sample_episodes
from rl_agent.types import EpisodeKey, EpisodeSpec, Phase, Split, Task


@dataclass(frozen=True, slots=True)
class Assignment:
    """The iteration and split that the command line asked for."""

    plan: Plan
    split: Split
    iteration: int
    resume: bool
    """Go on with what this run has begun of the iteration."""
    resume_must_exist: bool = True
    """Nothing to go on with is an error."""
    min_weight_version: int = 0
    """Engines of a pool that serve an older one are not asked."""

    @property
    def config(self) -> Config:
        return self.plan.config

    @property
    def phase(self) -> Phase:
        return "rollout" if self.split == "train" else "evaluate"


class Sample:
    """The episodes of an iteration in the order to start them, known by their index everywhere.

    It asks for the first `asked` of them. Those behind are a reserve, of which groups may be added.
    """

    def __init__(self, specs: Sequence[EpisodeSpec], *, count: int | None = None) -> None:
        self.specs = specs
        self.asked = len(specs) if count is None else count
        self._index_of = {spec.key: index for index, spec in enumerate(specs)}

    def __len__(self) -> int:
        return len(self.specs)

    @cached_property
    def digest(self) -> str:
        """Return a name of the sample: equal where two nodes, or a resume, run the very same episodes."""
        tasks = {spec.key.task_id: spec.task for spec in self.specs}
        digests = {name: _digest_of(task) for name, task in tasks.items()}
        digest = hashlib.blake2b(digest_size=16)
        for spec in self.specs:
            digest.update(f"{spec.key} {spec.seed} {spec.max_steps} {digests[spec.key.task_id]}\n".encode())
        return digest.hexdigest()

    def index(self, key: EpisodeKey) -> int:
        """Raises StoreError for an episode of another sample."""
        try:
            return self._index_of[key]
        except KeyError:
            raise StoreError(f"episode {key} is not of this iteration's sample") from None

    def groups(self, indices: Iterable[int]) -> list[list[int]]:
        """Return `indices`, ascending, with the attempts of one task together; they are neighbours."""

        def group_of(index: int) -> tuple[str, int]:
            key = self.specs[index].key
            return key.task_id, key.group

        return [list(group) for _, group in itertools.groupby(indices, group_of)]


def _digest_of(task: Task) -> str:
    fields = json.dumps([task.prompt, task.env, task.difficulty, task.answer, task.extra], sort_keys=True)
    return hashlib.blake2b(fields.encode(), digest_size=8).hexdigest()


class Ledger:
    """The episodes of a sample that are on the disk: one byte each, however many are recorded."""

    def __init__(self, sample: Sample) -> None:
        self.asked = sample.asked
        """The first so many episodes are asked for by now."""
        self._sample = sample
        self._is_recorded = bytearray(len(sample))

    def contains(self, key: EpisodeKey) -> bool:
        """Raises StoreError for an episode of another sample."""
        return bool(self._is_recorded[self._sample.index(key)])

    def record(self, key: EpisodeKey) -> bool:
        """False if it was recorded before. Raises like `contains`."""
        index = self._sample.index(key)
        is_new = not self._is_recorded[index]
        self._is_recorded[index] = True
        return is_new

    def left(self, indices: Iterable[int]) -> list[EpisodeSpec]:
        """Return those of these episodes that are not recorded."""
        return [self._sample.specs[index] for index in indices if not self._is_recorded[index]]

    def missing(self) -> list[int]:
        """Return the indices of the episodes that are asked for and not recorded."""
        return [index for index in range(self.asked) if not self._is_recorded[index]]


def sample_of(assignment: Assignment) -> Sample:
    """Draw the sample of an iteration. Raises ConfigError if a task is unusable, or too few are there."""
    config = assignment.config
    tasks = load_tasks(assignment.plan.tasks_file(assignment.split), config.env_config)
    split, iteration = assignment.split, assignment.iteration
    batches = [
        sample_episodes(tasks, split=split, iteration=iteration, config=config, batch=batch)
        for batch in range(config.num_gen_batches if split == "train" else 1)
    ]
    return Sample(list(itertools.chain(*batches)), count=len(batches[0]))
