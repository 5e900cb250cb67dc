"""Environments that cost nothing or a drawn time, for measuring the collector around them."""

import asyncio
import random

from rl_agent.types import Observation, StepResult, Task


class InstantEnvironment:
    """Ends every episode at once with reward 1."""

    is_cooperative = True

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        return StepResult(Observation(""), reward=1.0, done=True)

    async def close(self) -> None:
        pass


class LongTailedEnvironment:
    """A few steps, each as slow as a page load: lognormal around `median_s`, drawn from the episode's seed.

    The number of steps is drawn uniformly from 1 to `max_steps`. Equal seeds give equal episodes, so that
    different collectors can be compared on the very same work.
    """

    is_cooperative = True

    def __init__(self, median_s: float, sigma: float, max_steps: int) -> None:
        self._median_s = median_s
        self._sigma = sigma
        self._max_steps = max_steps

    async def reset(self, task: Task, seed: int) -> Observation:
        self._random = random.Random(seed)
        self._steps_left = self._random.randint(1, self._max_steps)
        await self._load()
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        await self._load()
        self._steps_left -= 1
        return StepResult(Observation("The page has changed."), reward=1.0, done=self._steps_left == 0)

    async def close(self) -> None:
        pass

    async def _load(self) -> None:
        await asyncio.sleep(self._median_s * self._random.lognormvariate(0.0, self._sigma))
