"""Draws the episodes of an iteration: a pure function of tasks, configuration and iteration.

There is no random generator here. Tasks are put in order by a digest of (seed, split, iteration, round,
task_id), so a sample is the same in every process, on every machine, after every resume, and whatever the
order of the lines in the task file.

Train takes `train_tasks_rollout_size` tasks with one of two samplers and runs each `group_size` times:

- `uniform`: every task is equally likely, without replacement. A size above the number of tasks starts a
  further round over all of them; a task's second appearance is its group 1, and so on.
- `ratio`: the size is divided among the difficulties in proportion to `difficulty_ratio` by largest
  remainder (whole parts first, what is left to the largest fractions, easier first among equals), and each
  difficulty is sampled uniformly as above.

A size of -1 takes every task once with either sampler. Test takes the first `test_tasks_rollout_size`
tasks of the file, each `test_tasks_repeat_times` times. Long episodes should not start last, so the hardest
tasks come first.

That is batch 0, which an iteration runs in any case. Every further batch of train goes on where the one
before ended, by the same sampler. They are a reserve, of which an iteration runs as much as it needs to
replace groups, so their order prefers no difficulty.
"""

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction

from rl_agent.config.plan import Config
from rl_agent.errors import ConfigError
from rl_agent.tasks.load import DIFFICULTIES
from rl_agent.types import EpisodeKey, EpisodeSpec, Split, Task

Draw = tuple[Task, int]
"""A task and how often the sample had taken it before."""


def sample_episodes(
    tasks: Sequence[Task], *, split: Split, iteration: int, config: Config, batch: int = 0
) -> list[EpisodeSpec]:
    """Return the episodes of a batch of one iteration in the order to start them; siblings are neighbours.

    Raises ConfigError if a difficulty that is needed has no tasks or no step limit.
    """
    origin = f"{config.seed}/{split}/{iteration}"
    env_config = config.env_config
    if split == "test":
        size = env_config.test_tasks_rollout_size
        chosen = tasks if size == -1 else tasks[:size]
        draws = [(task, group) for group in range(env_config.test_tasks_repeat_times) for task in chosen]
        group_size = 1
    else:
        draws = _draw_train(tasks, origin, config, batch)
        group_size = config.rollout.group_size
    max_steps = _max_steps({task.difficulty for task, _ in draws}, split, config)
    draws.sort(key=lambda draw: _start_order(draw, origin, is_reserve=batch > 0))
    return [
        EpisodeSpec(
            key=(key := EpisodeKey(task.task_id, group, attempt)),
            task=task,
            max_steps=max_steps[task.difficulty],
            seed=_number(f"{origin}/episode/{key}", bits=31),
        )
        for task, group in draws
        for attempt in range(group_size)
    ]


def shares(size: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Divides `size` in proportion to `weights` by largest remainder; ties go to the earlier key.

    The counts sum to `size` exactly, and each is its exact share rounded down or up.
    """
    exact = {name: Fraction(weight) for name, weight in weights.items()}
    total = sum(exact.values())
    quotas = {name: size * weight / total for name, weight in exact.items()}
    counts = {name: int(quota) for name, quota in quotas.items()}
    left = size - sum(counts.values())
    by_remainder = sorted(quotas, key=lambda name: counts[name] - quotas[name])
    for name in by_remainder[:left]:
        counts[name] += 1
    return counts


def _draw_train(tasks: Sequence[Task], origin: str, config: Config, batch: int) -> list[Draw]:
    size = config.env_config.train_tasks_rollout_size
    if size == -1:
        return [(task, batch) for task in tasks]
    if config.env_config.train_tasks_sampler == "uniform":
        return _draw_uniform(tasks, size, origin, batch)
    of_difficulty = {name: [task for task in tasks if task.difficulty == name] for name in DIFFICULTIES}
    weights = _ratio_weights(config.env_config.difficulty_ratio, of_difficulty)
    counts = shares(size, weights)
    return [
        draw for name in weights for draw in _draw_uniform(of_difficulty[name], counts[name], origin, batch)
    ]


def _draw_uniform(tasks: Sequence[Task], size: int, origin: str, batch: int) -> list[Draw]:
    """Draw so many, after those of the batches before: one round over the tasks follows another."""
    begin, end = batch * size, (batch + 1) * size
    draws: list[Draw] = []
    for round_ in range(begin // len(tasks), -(-end // len(tasks))):
        shuffled = sorted(tasks, key=lambda task: _digest(f"{origin}/draw/{round_}/{task.task_id}"))
        before = round_ * len(tasks)
        draws += [(task, round_) for task in shuffled[max(0, begin - before) : end - before]]
    return draws


def _ratio_weights(
    difficulty_ratio: Mapping[str, float], of_difficulty: Mapping[str, Sequence[Task]]
) -> dict[str, float]:
    """Return the weights above zero, easiest first."""
    key = "env_config.difficulty_ratio"
    for name in difficulty_ratio:
        if name not in DIFFICULTIES:
            raise ConfigError(f"{key}: unknown difficulty {name!r}; use {', '.join(DIFFICULTIES)}")
    weights = {name: difficulty_ratio[name] for name in DIFFICULTIES if difficulty_ratio.get(name)}
    if not weights:
        raise ConfigError(f"{key}: every share is 0; give at least one difficulty a share")
    for name in weights:
        if not of_difficulty[name]:
            raise ConfigError(f"{key}: no train task is {name}; add some or set {key}.{name}=0")
    return weights


def _max_steps(difficulties: set[str], split: Split, config: Config) -> Mapping[str, int]:
    max_steps = config.env_config.max_steps(split)
    for name in sorted(difficulties):
        if name not in max_steps:
            key = f"env_config.{split}_difficulty_max_steps"
            raise ConfigError(f"{key}: no step limit for {name} tasks; add +{key}.{name}=10")
    return max_steps


def _start_order(draw: Draw, origin: str, *, is_reserve: bool) -> tuple[int, bytes]:
    task, group = draw
    hardest_first = 0 if is_reserve else -DIFFICULTIES.index(task.difficulty)
    return hardest_first, _digest(f"{origin}/start/{group}/{task.task_id}")


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def _number(name: str, *, bits: int) -> int:
    """Return a seed that every library takes: not negative, `bits` long."""
    return int.from_bytes(_digest(name)) >> (128 - bits)
