"""An environment whose every second episode never comes back from its thread."""

import asyncio
import threading

from rl_agent.types import Observation, StepResult, Task


class HangingEnvironment:
    async def reset(self, task: Task, seed: int) -> Observation:
        if int(task.task_id.removeprefix("task-")) % 2:
            await asyncio.to_thread(threading.Event().wait)
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        return StepResult(Observation(""), reward=1.0, done=True)

    async def close(self) -> None:
        pass
