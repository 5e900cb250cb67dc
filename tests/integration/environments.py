"""A conversation of a few turns, whatever the model says."""

from rl_agent.types import Observation, StepResult, Task


class ThreeTurns:
    async def reset(self, task: Task, seed: int) -> Observation:
        self._turn = 0
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        self._turn += 1
        return StepResult(Observation(f"Turn {self._turn}: go on."), reward=0.5, done=self._turn == 3)

    async def close(self) -> None:
        pass
