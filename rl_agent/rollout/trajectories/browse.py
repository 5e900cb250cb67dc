"""Finds a run's recorded trajectories, and flattens them for tables."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from rl_agent.types import Split, Status, Step, Trajectory, reaches


@dataclass(frozen=True, slots=True)
class Filter:
    """The trajectories that are wanted; a None asks for nothing."""

    split: Split | None = None
    iterations: frozenset[int] | None = None
    status: Status | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    difficulty: str | None = None
    task_id: str | None = None

    def accepts(self, trajectory: Trajectory) -> bool:
        reward = trajectory.reward
        return (
            (self.status is None or trajectory.status is self.status)
            and (self.min_reward is None or (reward is not None and reaches(reward, self.min_reward)))
            and (self.max_reward is None or (reward is not None and reaches(self.max_reward, reward)))
            and (self.difficulty is None or trajectory.task.difficulty == self.difficulty)
            and (self.task_id is None or trajectory.key.task_id == self.task_id)
        )


def find(paths: RunPaths, query: Filter) -> Iterator[Trajectory]:
    """Yield the trajectories of all iterations, oldest first. StoreError names a bad line."""
    splits: tuple[Split, ...] = ("train", "test") if query.split is None else (query.split,)
    for split in splits:
        iterations = {*paths.iterations(split), *paths.iterations(split, unfinished=True)}
        for iteration in sorted(iterations):
            if query.iterations is None or iteration in query.iterations:
                yield from filter(query.accepts, read_iteration(paths, split, iteration, TRAJECTORY))


def flat(trajectory: Trajectory) -> dict[str, Any]:
    """Return one row of a table: plain values only."""
    steps = trajectory.steps
    return {
        "episode": str(trajectory.key),
        "task_id": trajectory.key.task_id,
        "group": trajectory.key.group,
        "attempt": trajectory.key.attempt,
        "split": trajectory.split,
        "iteration": trajectory.iteration,
        "env": trajectory.task.env,
        "difficulty": trajectory.task.difficulty,
        "status": trajectory.status.value,
        "reward": trajectory.reward,
        "rewards": " ".join(f"{name}={value:g}" for name, value in sorted(trajectory.rewards.items())),
        "truncated": trajectory.truncated,
        "steps": len(steps),
        "prompt_tokens": sum(len(step.prompt_token_ids) for step in steps),
        "response_tokens": sum(len(step.generation.token_ids) for step in steps),
        "shortened_steps": sum(bool(step.seen.whole_from) for step in steps),
        "duration_s": trajectory.duration_s,
        "started_at": trajectory.started_at,
        "weight_version_min": trajectory.weight_version_min,
        "weight_version_max": trajectory.weight_version_max,
        "model": trajectory.model,
        "prompt": trajectory.task.prompt,
        "answer": trajectory.task.answer,
        "last_response": steps[-1].generation.text if steps else None,
        "images": " ".join(path for step in steps for path in step.observation.images),
        "failure": f"{trajectory.failure.kind}: {trajectory.failure.message}" if trajectory.failure else None,
    }


def readable_time(seconds: float) -> str:
    """Format a time as that of this machine's clock, with its zone; as a number if no clock shows it."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"


BEGINS = {
    "new": "another conversation",
    "branch": "an earlier answer, continued in another way",
    "edited": "another conversation, in which the agent replaced an answer",
}


def seen_in_words(step: Step) -> str:
    """Return what of the earlier steps the engine saw, in words; empty where that is everything."""
    seen, own_images = step.seen, len(step.observation.images)
    parts = [BEGINS[step.begins]] if step.begins else []
    if seen.whole_from:
        gone = seen.whole_from - seen.as_lines
        parts += [f"whole from step {seen.whole_from}"]
        parts += [f"{seen.as_lines} before it as lines"] if seen.as_lines else []
        parts += [f"{gone} left out"] if gone else []
    if len(seen.images) > own_images:
        parts.append(f"{len(seen.images)} images")
    return ", ".join(parts)
