"""Decides which settings a run may be given anew when it is resumed.

    in the middle of an iteration   what decides how its episodes are made and judged, and how they are dealt
                                    to steps, stays as it was
    any other key, or between two   takes effect from now on, and is said

Siblings that were made in different ways cannot be compared, and a step that was made cannot be taken back:
with other samples, or another deal of them, some of an iteration would be trained on twice and others never.
What does not change that is free: a checkpoint is read by any number of ranks, and a step's size is that of
the step.
"""

from collections.abc import Iterator
from typing import Any

from rl_agent.cluster.protocol.schedule import PendingPhases
from rl_agent.cluster.protocol.shared_config import shared_values
from rl_agent.config.plan import Config, Plan
from rl_agent.engine.model import resolve_model
from rl_agent.rollout import conditions
from rl_agent.types import Split

_RESERVE = ("trainer.loss.drop_uninformative", "trainer.max_num_gen_batches")
_MOST_NAMED = 5
_TASK_FILES = ("env_config.train_tasks", "env_config.test_tasks")
"""The run goes on with its own copies of them."""


def check_changes(before: Plan, now: Plan, work: PendingPhases | None) -> str | None:
    """Return a line that says what differs from the last start of the run; None if nothing does.

    Raises ConfigError for what must not change in the middle of an iteration, if there is one.
    """
    for split, iteration in _begun(now, work):
        dealt = _dealt(before.config, now.config) if split == "train" else ()
        old, new = (_fixed(plan.config, split, dealt) for plan in (before, now))
        if change := conditions.first_change(old, new):
            raise conditions.refusal(iteration, change)
    old, new = shared_values(before.config), shared_values(now.config)
    keys = (old.keys() | new.keys()).difference(_TASK_FILES)
    changed = sorted(key for key in keys if old.get(key) != new.get(key))
    if not changed:
        return None
    named = ", ".join(f"{key}={new.get(key)} (was {old.get(key)})" for key in changed[:_MOST_NAMED])
    more = f" and {len(changed) - _MOST_NAMED} more keys changed" if len(changed) > _MOST_NAMED else ""
    return f"--resume: continues with {named}{more}"


def _fixed(config: Config, split: Split, dealt: tuple[str, ...]) -> dict[str, Any]:
    values = shared_values(config)
    deciding = conditions.deciding_values(config, split, resolve_model(config))
    return deciding | {key: values[key] for key in dealt if key in values}


def _dealt(before: Config, now: Config) -> tuple[str, ...]:
    """Return the keys that decide which step of a streaming trainer trains on which samples."""
    if not before.is_streaming:
        return ()
    is_dealt = before.grpo.batch.order == "shuffled"
    dealt = ("trainer.batch.order", *(("trainer.mini_batches",) if is_dealt else ()))
    return (*dealt, *(_RESERVE if before.num_gen_batches != now.num_gen_batches else ()))


def _begun(plan: Plan, work: PendingPhases | None) -> Iterator[tuple[Split, int]]:
    """Iterations in the middle of which the run is."""
    if work is None:
        return
    if work.iteration in plan.paths.iterations("test", unfinished=True):
        yield "test", work.iteration
    if (iteration := _begun_training(plan, work)) is not None:
        yield "train", iteration


def _begun_training(plan: Plan, work: PendingPhases) -> int | None:
    """The oldest iteration of which something is recorded and that has not had all its training."""
    paths = plan.paths
    unfinished = paths.iterations("train", unfinished=True)
    if not plan.config.is_streaming:
        return work.iteration if work.iteration in unfinished else None
    from rl_agent.trainer.grpo.checkpoint.states import trained_iteration

    trained = max(trained_iteration(paths.streaming), plan.first_iteration - 1)
    recorded = (*paths.iterations("train"), *unfinished)
    return min((iteration for iteration in recorded if iteration > trained), default=None)
