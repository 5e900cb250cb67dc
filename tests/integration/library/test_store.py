"""A collection in a folder goes on where it was, and is that of one call alone."""

import asyncio
import re
import urllib.request
from contextlib import aclosing

import pytest

from rl_agent import collect
from rl_agent.errors import ConfigError
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.verify import check

TASKS = [{"prompt": f"{number} + 1 =", "answer": str(number)} for number in range(5)]


def score(completion, answer):
    return float(answer in completion)


def served(url):
    """Return how many responses an engine has given."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        return int(re.search(r"simulated:served (\d+)", answer.read().decode())[1])


async def test_a_store_goes_on_where_it_was_and_gives_all(engine, tmp_path):
    scored, going_on = [], asyncio.Event()

    async def score(completion):
        scored.append(completion)
        if len(scored) > 3:
            await going_on.wait()
        return 1.0

    def again():
        words = ["env_config.server_size=1"]
        return collect(TASKS, engine, reward=score, group_size=2, settings=words, store=tmp_path / "kept")

    async with aclosing(aiter(again())) as first:
        before = [(await anext(first)).key for _ in range(3)]
    paths, requests = RunPaths(tmp_path / "kept"), served(engine)
    going_on.set()
    assert len(paths.checkpoint_shard("train", 1).read_bytes().splitlines()) == 1 + 3

    keys = [episode.key for episode in await again()]
    assert keys[:3] == before and len(set(keys)) == len(keys) == 10
    assert served(engine) - requests == 7

    requests = served(engine)
    assert [episode.key for episode in again()] == keys and served(engine) == requests
    assert all(each.is_whole for each in check(paths, "train", 1))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tasks": TASKS[:4]}, "holds episodes of other tasks"),
        ({"temperature": 0.5}, "was begun with policy_config.temperature=1.0, not 0.5"),
    ],
)
async def test_a_store_of_another_call_is_refused(engine, tmp_path, changes, problem):
    call = {"tasks": TASKS, "engine": engine, "reward": score, "store": tmp_path / "kept"}
    await collect(**call)
    with pytest.raises(ConfigError, match=re.escape(problem)):
        await collect(**call | changes)


async def test_a_store_that_is_a_file_is_refused_by_its_name(engine, tmp_path):
    file = tmp_path / "kept"
    file.touch()
    with pytest.raises(ConfigError, match=re.escape(f"store={file}: File exists; name a folder")):
        await collect(TASKS, engine, reward=score, store=file)
