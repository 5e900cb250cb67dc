"""Environments that do not look at what the model says."""

from rl_agent.types import Observation, StepResult, Task


class ThreeTurns:
    """A conversation of a few turns."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self._turn = 0
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        self._turn += 1
        return StepResult(Observation(f"Turn {self._turn}: go on."), reward=0.5, done=self._turn == 3)

    async def close(self) -> None:
        pass


class OftenEqual:
    """Attempts at a task with an even number have equal rewards; at others the seed says which."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self._reward = float(seed % 2) if int(task.task_id.rpartition("-")[2]) % 2 else 1.0
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        return StepResult(Observation(""), reward=self._reward, done=True)

    async def close(self) -> None:
        pass
