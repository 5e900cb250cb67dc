"""Deadlines of requests: seconds that pass, whatever the clock on the wall does meanwhile."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from pydantic_core import to_json

from rl_agent.pool.runtime.runtime import Runtime
from rl_agent.pool.schemas import RunRequest
from rl_agent.pool.settings import load_settings
from tests.support.pool_setup import item

LIMIT_S = 100.0
DAY_S = 86_400.0


@pytest.fixture
def wall(monkeypatch):
    """The wall clock; its hands are `wall.ahead_s` from where they should be."""

    class Wall:
        ahead_s = 0.0

    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + Wall.ahead_s)
    return Wall


@asynccontextmanager
async def running(folder, *words):
    settings = [f"journal={folder / 'journal'}", "journal_interval_s=0.01", *words]
    runtime = Runtime(load_settings(settings, {}))
    async with asyncio.TaskGroup() as jobs:
        ready = asyncio.Event()
        started = [jobs.create_task(runtime.pool.run(ready)), jobs.create_task(runtime.run_jobs())]
        await ready.wait()
        runtime.restore()
        yield runtime
        for job in started:
            job.cancel()


async def submit(runtime):
    request = RunRequest.model_validate_json(to_json(item(0, 10, timeout_s=LIMIT_S)))
    await runtime.runs.submit("run", [request])


def left_s(runtime) -> float:
    """Return the seconds left to the first request."""
    request = next(iter(runtime.pool.state.requests.values()))
    assert request.is_open and request.request_id.name == "r0"
    return request.order.deadline - runtime.pool.clock()


@pytest.mark.parametrize("step_s", [DAY_S, -DAY_S])
async def test_clock_set_while_a_request_is_journalled_moves_no_deadline(tmp_path, wall, step_s):
    async with running(tmp_path) as runtime:
        commit = runtime.runs._commit

        async def commit_while_the_clock_is_set(records):
            await commit(records)
            wall.ahead_s = step_s

        runtime.runs._commit = commit_while_the_clock_is_set
        await submit(runtime)
        assert left_s(runtime) == pytest.approx(LIMIT_S, abs=10)


@pytest.mark.parametrize("step_s", [DAY_S, -DAY_S])
async def test_clock_set_before_a_manager_restart_moves_no_deadline(tmp_path, wall, step_s):
    async with running(tmp_path) as runtime:
        await submit(runtime)
    wall.ahead_s = step_s
    async with running(tmp_path) as runtime:
        assert left_s(runtime) == pytest.approx(LIMIT_S, abs=10)
