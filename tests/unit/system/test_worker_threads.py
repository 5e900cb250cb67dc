import asyncio
import gc
import threading
import time
import weakref

import pytest

from rl_agent.system.worker_threads import WorkerThreads


@pytest.fixture
async def threads():
    """Two worker threads as the loop's executor."""
    pool = WorkerThreads(2)
    asyncio.get_running_loop().set_default_executor(pool)
    return pool


async def hang(release):
    """A call given up after it began; its thread, which is returned, stays inside until `release`."""
    began, inside = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def call():
        inside.append(threading.current_thread())
        loop.call_soon_threadsafe(began.set)
        release.wait(10)

    async with asyncio.TaskGroup() as jobs:
        job = jobs.create_task(asyncio.to_thread(call))
        await began.wait()
        job.cancel()
    return inside[0]


async def test_results_and_errors_come_back(threads):
    assert await asyncio.to_thread(lambda: 3) == 3
    with pytest.raises(SystemExit):
        await asyncio.to_thread(exit_)


def exit_():
    raise SystemExit(3)


async def test_no_more_calls_run_at_once_than_there_are_threads(threads):
    lock, running, most = threading.Lock(), 0, 0

    def call():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1

    await asyncio.gather(*(asyncio.to_thread(call) for _ in range(20)))
    assert most == 2


async def test_a_thread_takes_call_after_call_but_not_one_that_is_given_up(threads):
    used = {await asyncio.to_thread(threading.current_thread) for _ in range(20)}
    assert len(used) <= 2
    release = threading.Event()
    abandoned = await hang(release)
    release.set()
    abandoned.join(10)
    assert not abandoned.is_alive()


async def test_a_thread_without_a_call_keeps_nothing_of_the_last_one(threads):
    kept = weakref.WeakSet()

    async def call():
        environment = Environment()
        kept.add(environment)
        assert await asyncio.to_thread(environment.answer) is environment

    await call()
    async with asyncio.timeout(10):
        while kept:  # its thread may not be through with it yet
            gc.collect()  # asyncio's futures refer to each other
            await asyncio.sleep(0)


class Environment:
    def answer(self):
        return self


async def test_hung_calls_leave_their_places_to_others_and_are_named(threads, caplog):
    release = threading.Event()
    for _ in range(4):  # twice as many as there are threads
        await hang(release)
    try:
        async with asyncio.timeout(5):
            assert await asyncio.to_thread(lambda: "served") == "served"
        assert len(caplog.messages) == 4
        assert "thread environment left behind" in caplog.messages[0]
    finally:
        release.set()


async def test_a_call_that_waits_behind_a_hung_one_starts_when_that_is_given_up(threads):
    release, began = threading.Event(), threading.Barrier(3)

    def call():
        began.wait(10)
        release.wait(10)

    try:
        async with asyncio.TaskGroup() as jobs:
            hung = [jobs.create_task(asyncio.to_thread(call)) for _ in range(2)]
            waiting = jobs.create_task(asyncio.to_thread(lambda: "served"))
            await asyncio.sleep(0)
            began.wait(10)
            for job in hung:
                job.cancel()
            async with asyncio.timeout(5):
                assert await waiting == "served"
    finally:
        release.set()


async def test_shutting_down_does_not_wait_for_a_hung_thread(threads):
    release = threading.Event()
    await hang(release)
    threads.shutdown()  # would wait for ever
    release.set()
    with pytest.raises(RuntimeError, match="shutting down"):
        threads.submit(lambda: None)


async def test_a_call_that_raises_stop_iteration_ends_with_its_line(threads):
    with pytest.raises(RuntimeError, match="raised StopIteration") as raised:
        await asyncio.wait_for(asyncio.to_thread(lambda: next(iter(()))), 10)
    assert raised.traceback[-1].path.name == "test_worker_threads.py"
