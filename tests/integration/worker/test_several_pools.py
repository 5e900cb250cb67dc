"""Workers of two pools share a simulated engine, from its start to its end."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.errors import ConfigError, RetryLater, UsageError
from rl_agent.worker.several_pools import run_workers
from tests.integration.pool.publishing import announce, are_at
from tests.integration.pool.workers import engine_pids, settings
from tests.integration.worker.test_main import is_running
from tests.support.pool_setup import are_exact, manager, token_file
from tests.support.weight_transfers import hold, host
from tests.unit.weights.adapters import make_base, publish_adapter
from tests.unit.weights.weight_versions import open_store


@asynccontextmanager
async def shared_by(folder, *urls, **more):
    leaving, pools = asyncio.Event(), [settings(url, folder, capacity=8, **more) for url in urls]
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as jobs:
        job = jobs.create_task(run_workers(pools, session, leaving))
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


async def test_all_pools_that_refuse_their_worker_are_named(tmp_path, caplog):
    words = f"token_file={token_file(tmp_path / 'token', 'secret')}"
    async with manager(words) as a, manager(words) as b:
        with pytest.raises(BaseExceptionGroup) as raised:
            async with shared_by(tmp_path, a.url, b.url) as job:
                await asyncio.wait([job])
        named = caplog.text + str(raised.value.exceptions)
        assert all(f"the manager at {pool.url} refuses" in named for pool in (a, b)), named


async def test_an_unreadable_token_is_refused_before_an_engine_starts(tmp_path):
    def read_token():
        raise UsageError("--token-file: cannot be read")

    leaving = asyncio.Event()
    pools = [settings("http://127.0.0.1:9", tmp_path), settings("http://127.0.0.1:10", tmp_path)]
    pools[1] = replace(pools[1], read_token=read_token)
    async with aiohttp.ClientSession() as session, asyncio.timeout(5):
        with pytest.raises(UsageError, match="cannot be read"):
            await run_workers(pools, session, leaving)
    assert not (tmp_path / "engine.log").exists()


async def test_a_manager_that_begins_long_after_the_other_is_joined(tmp_path):
    port = free_port()
    late = f"http://127.0.0.1:{port}"
    async with manager() as a, shared_by(tmp_path, a.url, late, manager_timeout_s=1.0):
        await a.ready(1)
        await asyncio.sleep(2.5)
        async with manager(f"port={port}") as b:
            await b.ready(1)


async def test_managers_that_never_begin_are_waited_for_as_long_as_allowed(tmp_path):
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    with pytest.raises(BaseExceptionGroup) as raised:
        async with shared_by(tmp_path, *urls, manager_timeout_s=1.0) as job:
            await asyncio.wait([job], timeout=10)
    assert raised.group_contains(RetryLater, match="has not answered")


@pytest.mark.extended
async def test_a_hung_engine_with_adapters_ends_when_its_worker_is_told_to(tmp_path):
    base, how = make_base(tmp_path / "base"), {"loads_weights": True, "extra": ("--takes-weights",)}
    async with manager() as a, manager() as b:
        with host(open_store(tmp_path / "trainer")) as sender:
            async with shared_by(tmp_path, a.url, b.url, model=str(base), drain_s=1.0, **how):
                snapshot = publish_adapter(sender.store, base)
                for pool in (a, b):
                    await announce(pool, sender, snapshot)
                    await pool.until(are_at(pool, 1, 1))
                [pid] = engine_pids(tmp_path)
                os.killpg(pid, signal.SIGSTOP)
            assert not is_running(pid)


async def test_a_run_that_publishes_whole_weights_is_named_in_the_log(tmp_path, trainer, caplog):
    how = {"loads_weights": True, "extra": ("--takes-weights",)}
    trainer.publish(1)
    async with manager() as a, manager() as b, shared_by(tmp_path, a.url, b.url, **how):
        await asyncio.gather(a.ready(1), b.ready(1))
        await announce(b, trainer.sender, hold(trainer.sender, 1))
        await b.until(lambda: "publish adapters alone" in caplog.text)
    [line] = {line for line in caplog.text.splitlines() if "publish adapters alone" in line}
    assert f"version 1 (try 1) of the pool at {b.url}" in line
