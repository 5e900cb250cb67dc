"""Workers that live from one pool to the next, and start before the first."""

import os
import signal

import pytest

from rl_agent.env.remote.kept_workers import KEPT, KeptWorkers, keeping_workers
from rl_agent.env.remote.worker import WorkerSetup
from rl_agent.env.remote.worker_pool import open_workers
from tests.unit.env.remote.pools import KINDS, begun, is_gone, limits, pid_in, until

SETUP = WorkerSetup(KINDS, (), 8)


@pytest.fixture
def kept():
    kept = KeptWorkers()
    kept.is_open = True
    yield kept
    kept.end()


async def pids_of_a_pool(kept, setup=SETUP, *, closes=True, **changes):
    """Run two episodes at once in a pool of two workers; returns the workers' process ids."""
    async with open_workers(setup, limits(workers=2, **changes), kept) as pool:
        instances = [await begun(pool), await begun(pool)]
        for instance, _ in instances:
            if closes:
                await instance.close()
    return {pid_in(shown) for _, shown in instances}


async def test_the_next_pool_takes_the_same_workers(kept):
    first = await pids_of_a_pool(kept)
    assert len(first) == 2
    assert await pids_of_a_pool(kept) == first
    assert await pids_of_a_pool(kept) == first


async def test_workers_that_were_started_before_a_pool_are_taken(kept):
    assert kept.start(SETUP, 2) == 2
    assert kept.start(SETUP, 2) == 0
    guards = {worker.process.pid for worker in kept._workers}
    async with open_workers(SETUP, limits(workers=2), kept) as pool:
        await begun(pool)
        await begun(pool)
        assert set(pool.pids) == guards


async def test_a_setup_larger_than_a_socket_holds_arrives_whole(kept):
    setup = WorkerSetup(KINDS, (), 8, {"obeying": {"greeting": "x" * 2**21}})
    assert len(await pids_of_a_pool(kept, setup)) == 2


async def test_a_worker_counts_its_episodes_over_pools(kept):
    first = await pids_of_a_pool(kept, max_episodes=2)
    second = await pids_of_a_pool(kept, max_episodes=2)
    assert second == first
    assert not await pids_of_a_pool(kept, max_episodes=2) & first


async def test_a_worker_with_an_open_instance_is_not_kept(kept):
    first = await pids_of_a_pool(kept, closes=False)
    assert all(is_gone(pid) for pid in first)


async def test_a_kept_worker_that_died_is_replaced(kept):
    first = await pids_of_a_pool(kept)
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: all(worker.process.has_ended for worker in kept._workers))
    assert not await pids_of_a_pool(kept) & first


async def test_workers_of_another_setup_are_ended(kept):
    first = await pids_of_a_pool(kept)
    second = await pids_of_a_pool(kept, WorkerSetup(KINDS, (), 8, {"obeying": {"greeting": "hi "}}))
    assert not second & first
    await until(lambda: all(is_gone(pid) for pid in first))


async def test_workers_are_kept_only_within_the_block():
    with keeping_workers():
        first = await pids_of_a_pool(KEPT)
        assert await pids_of_a_pool(KEPT) == first
    await until(lambda: all(is_gone(pid) for pid in first))
    assert not await pids_of_a_pool(KEPT) & first
