"""Environments that cost nothing or a drawn time, for measuring the collector around them."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from rl_agent.env.web.environment import WebEnvironment
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


class LongTailedPages(WebEnvironment):
    """Pages of a shop in a real Chromium, each after a pause that stands for the network, as above.

    Random weights write no actions: whatever the model says, a page drawn from the episode's seed is opened
    and pictured.
    """

    is_cooperative = False

    def __init__(self, median_s: float, sigma: float, max_steps: int) -> None:
        super().__init__()
        self._network = LongTailedEnvironment(median_s, sigma, max_steps)

    @staticmethod
    def check_settings(**kwargs: Any) -> None:
        WebEnvironment.check_settings()

    @staticmethod
    def check_task(task: Task, kwargs: Mapping[str, Any]) -> None:
        WebEnvironment.check_task(task, {})

    async def reset(self, task: Task, seed: int) -> Observation:
        await self._network.reset(task, seed)
        self._pages = random.Random(seed)
        return await super().reset(task, seed)

    async def step(self, action: str) -> StepResult:
        waited = await self._network.step(action)
        result = await super().step(f"goto http://shop.test/item/{self._pages.randint(1, 20)}")
        return StepResult(result.observation, reward=1.0, done=waited.done or result.done)
