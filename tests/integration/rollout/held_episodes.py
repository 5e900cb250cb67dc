"""Episodes of one turn, one of which waits until the test lets it go on."""

import asyncio
from dataclasses import replace
from typing import ClassVar

from rl_agent.rollout.sample import Assignment
from rl_agent.rollout.trajectories.shard import read_undamaged
from rl_agent.types import Observation, StepResult, Task

TASKS, PLACES = 12, 4
WORDS = (
    "+env_config.kinds.held=tests.integration.rollout.held_episodes:Held",
    "env_config.train_tasks_rollout_size=-1",
    f"env_config.server_size={PLACES}",
)


class Held:
    """One turn; the first one of `task-0` waits until the test lets it go on."""

    is_cooperative = True
    alive: ClassVar[set[int]] = set()
    most_alive: ClassVar[int] = 0
    held: ClassVar[set[str]] = set()
    go_on: ClassVar[asyncio.Event]

    async def reset(self, task: Task, seed: int) -> Observation:
        Held.alive.add(id(self))
        Held.most_alive = max(Held.most_alive, len(Held.alive))
        self._is_held = task.task_id in Held.held
        Held.held.discard(task.task_id)
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        if self._is_held:
            await Held.go_on.wait()
        return StepResult(Observation(""), reward=1.0, done=True)

    async def close(self) -> None:
        Held.alive.discard(id(self))


async def next_of(assignment):
    return replace(assignment, iteration=assignment.iteration + 1) if assignment.iteration < 3 else None


def assignment(plan, iteration):
    return Assignment(plan, "train", iteration, resume=True, resume_must_exist=False)


def recorded(plan, iteration):
    shards = (plan.paths.checkpoint_shard("train", iteration), plan.paths.shard("train", iteration))
    begun = [shard for shard in shards if shard.exists() and b"\n" in shard.read_bytes()]
    return [key for shard in begun for key in read_undamaged(shard)[0]]


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
