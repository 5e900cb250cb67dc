"""Decides which iteration and phases come next. Pure, except for the functions that read the disk.

    rollout: one split an iteration        update: train
    both:    rollout -> evaluate, if iteration % N == 1 -> update; after the last iteration: evaluate
    with a streaming trainer, which changes the weights as soon as it can: evaluate -> rollout -> update

An iteration continues until all its phases are done, also across restarts; then the next one begins.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from rl_agent.config.plan import Command
from rl_agent.paths import RunPaths
from rl_agent.types import Phase


@dataclass(frozen=True, slots=True)
class PendingPhases:
    """The unfinished phases of an iteration, in order."""

    iteration: int
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class FinishedIterations:
    """The highest iterations with a finished train shard, a finished test shard, a prepared update."""

    train: int = 0
    test: int = 0
    update: int = 0


def is_evaluated(iteration: int, eval_interval: int) -> bool:
    """Return whether an iteration has an evaluation: iteration % N == 1, or N == 1."""
    return iteration % eval_interval == 1 % eval_interval


def phases_of(command: Command, iteration: int, *, is_streaming: bool = False) -> tuple[Phase, ...]:
    """Return all phases of an iteration, in order."""
    if command.rl_phase == "update":
        return ("update",)
    if command.rl_phase == "rollout":
        return ("rollout",) if command.rollout_split == "train-only" else ("evaluate",)
    if command.eval_interval and is_evaluated(iteration, command.eval_interval):
        return ("evaluate", "rollout", "update") if is_streaming else ("rollout", "evaluate", "update")
    return ("rollout", "update")


def first_iteration(command: Command, numbers: FinishedIterations) -> int:
    """Return the iteration in which a fresh start begins: one after the last that has finished files.

    An update alone belongs to the newest train iteration, unless an update was prepared for it before.
    """
    if command.rl_phase == "update":
        return max(numbers.train, numbers.update + 1, 1)
    if command.rl_phase == "rollout":
        return 1 + (numbers.train if command.rollout_split == "train-only" else numbers.test)
    return 1 + max(numbers.train, numbers.test, numbers.update)


def next_work(
    command: Command, first: int, finished: Mapping[int, AbstractSet[str]], *, is_streaming: bool = False
) -> PendingPhases | None:
    """Return the first iteration from `first` with unfinished phases; None once `max_iterations` are done.

    The model that the last update made is evaluated as the next iteration would begin.
    """
    iteration = first
    while command.max_iterations is None or iteration < first + command.max_iterations:
        done = finished.get(iteration, frozenset())
        all_phases = phases_of(command, iteration, is_streaming=is_streaming)
        phases = tuple(phase for phase in all_phases if phase not in done)
        if phases:
            return PendingPhases(iteration, phases)
        iteration += 1
    is_evaluated_last = not command.final_eval or "evaluate" in finished.get(iteration, ())
    return None if is_evaluated_last else PendingPhases(iteration, ("evaluate",))


def needed_iteration(phase: str, iteration: int, *, staleness: int, last: int | None) -> int:
    """Return the iteration whose weights a streaming trainer must publish before a phase may begin.

    For `update`: before it may end. An evaluation is of one version, so all iterations before it are trained
    by then; the last update leaves none untrained.
    """
    if phase == "evaluate":
        return iteration - 1
    if phase == "rollout":
        return iteration - 1 - staleness
    return iteration if iteration == last else iteration - staleness


def oldest_version(phase: str, iteration: int, published: int, version: int, *, staleness: int) -> int:
    """Return the oldest weight version that a phase may use, if `version` was made by iteration `published`.

    The training of iteration k starts from the version that k - 1 made, and adds at least one.
    """
    if phase != "rollout":
        return version
    return max(version + (iteration - 1 - published) - staleness, 0)


def finished_on_disk(paths: RunPaths) -> FinishedIterations:
    """Read the highest finished iterations from the log path."""
    prepared = paths.update_dir(0).parent
    names = [entry.name for entry in prepared.iterdir()] if prepared.is_dir() else []
    updates = [int(name.removeprefix("iteration")) for name in names if name[9:].isdigit()]
    train, test = paths.iterations("train"), paths.iterations("test")
    return FinishedIterations(max(train, default=0), max(test, default=0), max(updates, default=0))


def add_shards(finished: dict[int, set[str]], paths: RunPaths) -> dict[int, set[str]]:
    """Add phases whose shard is finished, in case the run was killed before it wrote the flag."""
    for iteration in paths.iterations("train"):
        finished.setdefault(iteration, set()).add("rollout")
    for iteration in paths.iterations("test"):
        finished.setdefault(iteration, set()).add("evaluate")
    return finished
