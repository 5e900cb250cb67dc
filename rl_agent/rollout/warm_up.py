"""Starts a rollout's environment workers while its engine loads: both import for a while."""

from contextlib import suppress

from rl_agent.config.plan import Plan
from rl_agent.env.remote.environments import Environments
from rl_agent.errors import HarnessError
from rl_agent.rollout.sample import Assignment, sample_of
from rl_agent.types import Split


def start_environments(plan: Plan, phase: str, iteration: int) -> int:
    """Start the workers of a phase's environments; returns how many were started.

    What is wrong with tasks or environments is reported by the rollout, not here.
    """
    if phase not in ("rollout", "evaluate"):
        return 0
    split: Split = "train" if phase == "rollout" else "test"
    with suppress(HarnessError, OSError):
        sample = sample_of(Assignment(plan, split, iteration, resume=False))
        kinds = {spec.task.env for spec in sample.specs}
        return Environments(plan.config.env_config).start_workers(kinds, len(sample.specs))
    return 0
