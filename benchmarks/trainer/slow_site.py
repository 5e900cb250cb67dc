"""A site as slow as the web: each page comes late, and is a screenshot that nobody has had before.

After an action WebGym waits one second and 0.2 s for each call of its browser (counted in its code); what the
page itself takes is log-normal, and so is how slow a site is, which all pages of a task share: a few episodes
take several times as long as the others.
"""

import asyncio
import hashlib
import math
import random
from functools import lru_cache
from pathlib import Path

from benchmarks.pool.image_requests import Screenshots
from rl_agent.types import Observation, StepResult, Task

ACTION_S = 1.2
SIGMA_SITE, SIGMA_PAGE = 0.7, 0.7
LONGEST_S = 60.0


class SlowSite:
    """Each task names its fewest and most turns and a factor of all pauses; rewards are drawn.

    Where a task has `mean_turns`, turns are geometric with about that mean; otherwise each number is as
    likely.
    """

    is_cooperative = True

    def __init__(self, folder: str) -> None:
        """Screenshots are written to `folder`."""
        self._screenshots = screenshots(Path(folder))

    async def reset(self, task: Task, seed: int) -> Observation:
        self._name, self._turn = f"{task.task_id}-{seed}", 0
        self._random = random.Random(seed)
        self._factor = float(task.extra["pauses"])
        self._site = drawn(random.Random(task.task_id), SIGMA_SITE)
        self._turns = turns_of(task, self._random)
        return await self._load(f"{task.prompt} ")

    async def step(self, action: str) -> StepResult:
        self._turn += 1
        if self._turn < self._turns:
            return StepResult(await self._load(""))
        digest = hashlib.sha256(f"{self._name} {action}".encode()).digest()
        return StepResult(Observation(""), reward=float(digest[0] % 2), done=True)

    async def close(self) -> None:
        pass

    async def _load(self, text: str) -> Observation:
        page = self._site * drawn(self._random, SIGMA_PAGE)
        await asyncio.sleep(min(self._factor * (ACTION_S + page), LONGEST_S))
        image = self._screenshots.take(f"{self._name}-{self._turn}")
        return Observation(f"{text}Page {self._turn + 1}.", images=(str(image.path),))


def turns_of(task: Task, random_: random.Random) -> int:
    """Draw the number of turns of an episode."""
    fewest, most = task.extra["turns"]
    mean = task.extra.get("mean_turns")
    if mean is None:
        return random_.randint(fewest, most)
    after_each = math.log(1 - 1 / (1 + mean - fewest))
    return min(fewest + int(math.log(1 - random_.random()) / after_each), most)


def drawn(random_: random.Random, sigma: float) -> float:
    """Draw a log-normal number whose mean is 1."""
    return random_.lognormvariate(-(sigma**2) / 2, sigma)


@lru_cache
def screenshots(folder: Path) -> Screenshots:
    return Screenshots(folder)
