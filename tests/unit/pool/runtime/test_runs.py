"""A run goes on after its manager's end."""

import asyncio

import pytest
from pydantic_core import to_json

from rl_agent.pool.runtime.runtime import Runtime
from rl_agent.pool.schemas import RunRequest
from rl_agent.pool.settings import load_settings
from tests.support.pool_setup import item


async def left_s(folder, *items) -> float:
    """Submit to a manager with the journal of the one before; return the seconds left to its request."""
    runtime = Runtime(load_settings([f"journal={folder / 'journal'}"], {}))
    async with asyncio.TaskGroup() as jobs:
        started = [jobs.create_task(runtime.pool.run(asyncio.Event())), jobs.create_task(runtime.run_jobs())]
        await asyncio.sleep(0)
        runtime.restore()
        await runtime.runs.submit("run", [RunRequest.model_validate_json(to_json(each)) for each in items])
        (request,) = runtime.pool.state.requests.values()
        for job in started:
            job.cancel()
    return request.order.deadline - runtime.pool.clock()


async def test_a_restarted_manager_keeps_the_deadline_of_a_request(tmp_path):
    assert await left_s(tmp_path, item(0, 10, timeout_s=100.0)) == pytest.approx(100.0, abs=10)
    assert await left_s(tmp_path) == pytest.approx(100.0, abs=10)
