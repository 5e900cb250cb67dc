"""Log paths with trajectories, their index, addresses of episodes, and what is answered there."""

import asyncio
import hashlib
import io
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

from aiohttp.test_utils import TestClient
from PIL import Image

from rl_agent.page.index import EpisodeIndex
from rl_agent.page.search import read_query, search
from rl_agent.paths import RunPaths
from rl_agent.types import Trajectory
from tests.unit.rollout.trajectories_made import make_header, make_trajectory, write_shard


def record(
    paths: RunPaths, iteration: int, *episodes: Trajectory, split: str = "train", grows: bool = False
) -> Path:
    name = paths.checkpoint_shard if grows else paths.shard
    return write_shard(name(split, iteration), make_header(iteration, split), *episodes)


def attempts(index: int, rewards: list[float], **more) -> list[Trajectory]:
    """The siblings of one task."""
    return [make_trajectory(index, attempt=n, reward=reward, **more) for n, reward in enumerate(rewards)]


def keep_png(paths: RunPaths, width: int = 40, height: int = 20, colour: str = "red") -> str:
    """Keep an image as the collector does, and return its recorded path."""
    content = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(content, "PNG")
    return keep_bytes(paths, content.getvalue(), ".png")


def keep_bytes(paths: RunPaths, content: bytes, suffix: str) -> str:
    digest = hashlib.sha256(content).hexdigest()
    target = paths.images / digest[:2] / f"{digest}{suffix}"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return str(target)


def address(task="task-0", attempt=0, view="episode", **more):
    key = {"split": "train", "iteration": 1, "task": task, "group": 0, "attempt": attempt, **more}
    return f"/runs/log/{view}?{urlencode(key)}"


async def text_of(client, path):
    answer = await client.get(path)
    assert answer.status == 200, await answer.text()
    return await answer.text()


async def until_indexed(client: TestClient, path: str = "/runs/log/episodes") -> str:
    """Return the list once the index is up to date."""
    async with asyncio.timeout(90):
        for look in itertools.count():
            text = await (await client.get(f"{path}{'&' if '?' in path else '?'}look={look}")).text()
            if "<progress" not in text:
                return text
            await asyncio.sleep(0.05)
    raise AssertionError("unreachable")


def until(claim: Callable[[], bool], timeout_s: float = 60, *, every_s: float = 0.01) -> None:
    """Wait until a claim holds."""
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(every_s)


def follow(index: EpisodeIndex, expected: int | None = None) -> None:
    """Wait until it is up to date, and has so many episodes."""

    def is_followed() -> bool:
        index.wake()
        return index.progress.is_up_to_date and expected in (None, count(index))

    until(is_followed, 30)


def count(index: EpisodeIndex) -> int:
    return search(index, read_query({}), 1).total


def names_of(index: EpisodeIndex, **fields: str) -> list[str]:
    rows = search(index, read_query(fields), 1).rows
    return [f"{row['task_id']}:{row['attempt']}" for row in rows]
