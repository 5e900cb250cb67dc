"""What a run may be given anew when it is resumed.

    in the middle of an iteration   which samples it has, and how they are dealt to steps, stays as it was
    any other key, or between two   takes effect from now on, and is said

A step that was made cannot be taken back: with other samples, or another deal of them, some of an iteration
would be trained on twice and others never. What does not change that is free: a checkpoint is read by any
number of ranks, and a step's size is that of the step.
"""

from rl_agent.cluster.schedule import Work
from rl_agent.cluster.shared import shared_values
from rl_agent.config import Config, Plan
from rl_agent.errors import ConfigError

_SAMPLES = ("env_config.train_tasks_rollout_size", "rollout.group_size", "seed", "trainer.kind")
_RESERVE = ("trainer.loss.drop_uninformative", "trainer.max_num_gen_batches")
_MOST_NAMED = 5


def check_changes(before: Plan, now: Plan, work: Work | None) -> str | None:
    """A line that says what differs from the last start of the run; None if nothing does.

    Raises ConfigError for what must not change in the middle of an iteration, if there is one.
    """
    old, new = shared_values(before.config), shared_values(now.config)
    changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    begun = _begun_iteration(now, work)
    for key in changed:
        if begun is not None and key in _fixed(before.config, now.config):
            raise ConfigError(
                f"--resume: iteration {begun} was begun with {key}={old.get(key)}, not {new.get(key)};"
                " undo the change until that iteration is done, or start without --resume"
            )
    if not changed:
        return None
    named = ", ".join(f"{key}={new.get(key)} (was {old.get(key)})" for key in changed[:_MOST_NAMED])
    more = f" and {len(changed) - _MOST_NAMED} more keys changed" if len(changed) > _MOST_NAMED else ""
    return f"--resume: goes on with {named}{more}"


def _fixed(before: Config, now: Config) -> tuple[str, ...]:
    """Keys that decide which samples an iteration has, and which step trains on which."""
    if not before.is_streaming:
        return _SAMPLES
    is_dealt = before.grpo.batch.order == "shuffled"
    dealt = ("trainer.batch.order", *(("trainer.mini_batches",) if is_dealt else ()))
    return (*_SAMPLES, *dealt, *(_RESERVE if before.num_gen_batches != now.num_gen_batches else ()))


def _begun_iteration(plan: Plan, work: Work | None) -> int | None:
    """The oldest iteration of which something is recorded and that has not had all its training."""
    if work is None:
        return None
    paths = plan.paths
    unfinished = paths.iterations("train", unfinished=True)
    if not plan.config.is_streaming:
        return work.iteration if work.iteration in unfinished else None
    from rl_agent.trainer.states import trained_iteration

    trained = max(trained_iteration(paths.streaming), plan.first_iteration - 1)
    recorded = (*paths.iterations("train"), *unfinished)
    return min((iteration for iteration in recorded if iteration > trained), default=None)
