"""Environments that cost nothing or a drawn time, for measuring the collector around them."""


from rl_agent.types import Observation, StepResult, Task


class InstantEnvironment:
    """Ends every episode at once with reward 1."""

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        return StepResult(Observation(""), reward=1.0, done=True)

    async def close(self) -> None:
        pass
