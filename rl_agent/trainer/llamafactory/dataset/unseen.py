"""Decides whether a run of updates alone (`--rl-phase update`) has new trajectories to train on.

Each update reads the last k training iterations, and its version records which. Without `--max-iterations` a
run of updates ends once the served version was trained on all of them: nothing new is collected meanwhile,
and training on the same steps again and again is rarely intended.
"""

from collections.abc import Sequence

from rl_agent.config.plan import Config, Plan
from rl_agent.served_model import versions


def iterations_read(config: Config) -> list[int]:
    """List the finished training iterations that an update would read now, oldest first."""
    return config.paths.iterations("train")[-config.llamafactory.recent_iterations :]


def unseen_iterations(plan: Plan) -> list[int]:
    """List those of `iterations_read` that are newer than all the served version was trained on."""
    return [iteration for iteration in iterations_read(plan.config) if iteration > _newest_seen(plan)]


def has_ended(plan: Plan) -> bool:
    """Return whether a run of updates alone ends because there is nothing new."""
    is_open = plan.command.rl_phase == "update" and plan.command.max_iterations is None
    return is_open and not unseen_iterations(plan)


def outlook(plan: Plan) -> str:
    """Describe in one line what a run of updates alone will do, and how it ends."""
    read, count = iterations_read(plan.config), plan.command.max_iterations
    if count is not None:
        each = f"{count} updates, each" if count > 1 else "one update"
        return f"update: {each} on steps drawn from {_named(read)}; --max-iterations {count} ends it"
    if has_ended(plan):
        return f"update: {why_ended(plan)}"
    return (
        f"update: one on steps drawn from {_named(read)}, then the end unless more are finished by then;"
        " --max-iterations N makes N updates of them"
    )


def why_ended(plan: Plan) -> str:
    """Explain why there is nothing to do, and what would change that."""
    if not (read := iterations_read(plan.config)):
        return f"no training iteration is finished in {plan.config.log_path}: nothing to train on"
    return (
        f"nothing new to train on: the served model was trained on {_named(read)} already;"
        " collect more, or --max-iterations N for N updates of the same"
    )


def _newest_seen(plan: Plan) -> int:
    record = versions.served_record(plan.paths)
    if record is None:
        return 0
    return max(record.trained_on, default=record.iteration)


def _named(iterations: Sequence[int]) -> str:
    if not iterations:
        return "no training iteration, for none is finished"
    if len(iterations) == 1:
        return f"training iteration {iterations[0]}"
    is_range = iterations[-1] - iterations[0] == len(iterations) - 1
    ends = f"{iterations[0]} to {iterations[-1]}" if is_range else ", ".join(map(str, iterations))
    return f"training iterations {ends}"
