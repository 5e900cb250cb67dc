"""Workers of two pools share a simulated engine, from its start to its end."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager

import aiohttp
import pytest

from rl_agent.errors import ConfigError
from rl_agent.worker.several_pools import run_workers, share_engine
from tests.integration.pool.workers import engine_pids, settings
from tests.integration.worker.test_main import is_running
from tests.support.pool_setup import are_exact, manager, token_file


@asynccontextmanager
async def shared_by(folder, *urls, **more):
    leaving, pools = asyncio.Event(), [settings(url, folder, capacity=8, **more) for url in urls]
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as jobs:
        job = jobs.create_task(run_workers(share_engine(pools), session, leaving))
        try:
            yield job
        finally:
            leaving.set()


async def test_two_pools_use_one_engine_which_the_last_worker_ends(tmp_path):
    async with manager() as a, manager() as b:
        async with shared_by(tmp_path, a.url, b.url):
            for pool in (a, b):
                await pool.ready(1)
                await pool.submit("run", [30] * 8)
                assert are_exact(await pool.samples("run", at_least=8), 30)
            [pid] = engine_pids(tmp_path)
        assert [pool.state.departed[-1].reason for pool in (a, b)] == 2 * ["left in order"]
    assert not is_running(pid)


async def test_a_dead_engine_is_reported_to_both_pools_and_started_once(tmp_path):
    async with (
        manager("lease_s=30") as a,
        manager("lease_s=30") as b,
        shared_by(tmp_path, a.url, b.url, extra=("--interval", "0.005")),
    ):
        for pool in (a, b):
            await pool.ready(1)
            await pool.submit("run", [300] * 4)
            await pool.until(lambda pool=pool: pool.state.account.tokens > 100)
        os.killpg(engine_pids(tmp_path)[0], signal.SIGKILL)
        for pool in (a, b):
            assert are_exact(await pool.samples("run", at_least=4), 300)
            assert pool.state.account.engine_deaths == 1
    assert len(engine_pids(tmp_path)) == 2


async def test_a_pool_that_wants_another_model_leaves_the_engine_to_the_other(tmp_path):
    async with (
        manager("model=model-a") as a,
        manager("model=model-a") as b,
        shared_by(tmp_path, a.url, b.url, model=None),
    ):
        await asyncio.gather(a.ready(1), b.ready(1))
        await a.call("POST", "/model", {"model": "model-b", "weight_version": 1})
        await a.until(lambda: not a.state.engines)
        await b.submit("run", [30] * 4)
        assert are_exact(await b.samples("run", at_least=4), 30)
        assert b.state.account.engine_deaths == 0 and len(engine_pids(tmp_path)) == 1


async def test_a_pool_that_refuses_its_worker_costs_the_other_nothing(tmp_path):
    words = f"token_file={token_file(tmp_path / 'token', 'secret')}"
    async with manager() as a, manager(words) as b:
        with pytest.raises(BaseExceptionGroup) as raised:
            async with shared_by(tmp_path, a.url, b.url):
                await a.ready(1)
                await a.submit("run", [30] * 4)
                assert are_exact(await a.samples("run", at_least=4), 30)
        assert raised.group_contains(ConfigError, match="refuses")
        assert a.state.departed[-1].reason == "left in order"
