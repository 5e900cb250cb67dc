"""A run against a simulated engine in whose first iteration an episode is held."""

import asyncio

import pytest

from tests.integration.rollout.held_episodes import TASKS, WORDS, Held
from tests.support.rollout_setup import make_plan, simulated_engine, write_tasks


@pytest.fixture
def held_plan(tmp_path):
    Held.most_alive, Held.held, Held.go_on = 0, {"task-0"}, asyncio.Event()
    with simulated_engine(tmp_path) as url:
        plan = make_plan(tmp_path, *WORDS, engine_url=url)
        write_tasks(plan, TASKS, env="held")
        yield plan
