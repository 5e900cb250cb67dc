"""Scripted agents earn all of the reward, and a random one next to none."""

import random
import sys
from collections.abc import AsyncIterator

import pytest

from rl_agent.env.web.element_finder import ElementFinder
from rl_agent.env.web.miniwob import task_names
from rl_agent.errors import EnvironmentFailure
from rl_agent.paths import PROJECT_ROOT
from tests.support.scripted_agents import Oracle, play
from tests.support.scripted_agents import shop as shop_oracle

from .conftest import miniwob, shop

sys.path.insert(0, str(PROJECT_ROOT / "data"))

from miniwob_oracles import ORACLES

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.extended, pytest.mark.timeout(600)]

SEEDS = (11, 12, 13)


def at_random(seed: int, steps: int = 10) -> Oracle:
    """An agent that clicks, types and scrolls anywhere."""

    async def act(_finder: ElementFinder, _goal: str) -> AsyncIterator[str]:
        random_ = random.Random(seed)
        for _ in range(steps):
            x, y, to_x, to_y = (random_.randint(0, 1000) for _ in range(4))
            yield random_.choice(
                [f"click {x} {y}"] * 5
                + [f"drag {x} {y} {to_x} {to_y}", "type a", "key Tab", "key Enter", "scroll down"]
            )

    return act


async def test_there_are_oracles_of_at_least_25_tasks():
    assert len(set(ORACLES) & set(task_names())) == len(ORACLES) >= 25


@pytest.mark.parametrize("name", sorted(ORACLES))
async def test_a_scripted_agent_solves_every_seed(web, name):
    environment = web()
    rewards = [(await play(environment, miniwob(name, seed), ORACLES[name])).reward for seed in SEEDS]
    assert rewards == [1.0] * len(SEEDS)


@pytest.mark.parametrize("goal", ["price", "cart", "order", "cheapest"])
async def test_a_scripted_agent_does_all_that_the_shop_asks(web, goal):
    environment = web(width=640, height=480)
    rewards = [(await play(environment, shop(goal, seed), shop_oracle)).reward for seed in SEEDS]
    assert rewards == [1.0] * len(SEEDS)


async def test_a_random_agent_earns_next_to_nothing(web):
    environment = web(width=640, height=480)
    tasks = [miniwob(name, 21) for name in ORACLES] + [shop(goal, 21) for goal in ("price", "cart", "order")]
    rewards = [(await play(environment, task, at_random(n))).reward for n, task in enumerate(tasks)]
    assert sum(rewards) / len(rewards) < 0.2


async def test_every_task_begins_shows_itself_and_takes_an_action(web):
    environment = web()
    failed = []
    for name in task_names():
        try:
            first = await environment.reset(miniwob(name, 3), 0)
            result = await environment.step("key Tab")
        except EnvironmentFailure as error:
            failed.append(f"{name}: {error}")
        else:
            if len(first.text) <= len("Goal: ") or not result.observation.images:
                failed.append(name)
    assert not failed
    assert len(task_names()) == 103
