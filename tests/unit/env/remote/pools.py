"""Pools of real workers for tests, and what they leave behind."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

from rl_agent.env.guard import descendants
from rl_agent.env.remote.placement import WorkerLimits
from rl_agent.env.remote.worker import WorkerSetup
from rl_agent.env.remote.worker_pool import open_workers
from rl_agent.system.processes import ProcessId
from rl_agent.types import Task

MODULE = "tests.unit.env.remote.kinds"
KINDS = {
    "obeying": f"{MODULE}:Obeying",
    "never_closing": f"{MODULE}:NeverClosing",
    "demanding": f"{MODULE}:Demanding",
}
TASK = Task("t", "hello", "obeying", "easy")


def limits(**changes):
    usual = {
        "workers": 1,
        "timeout_s": 20.0,
        "max_episodes": 1000,
        "max_age_s": 3600.0,
        "max_rss_mib": 4096.0,
    }
    return WorkerLimits(**usual | changes)


@asynccontextmanager
async def workers(kinds=KINDS, kwargs=None, **changes):
    """Give a pool; when it has ended, so has every process that lived below it."""
    async with open_workers(WorkerSetup(kinds, (), 8, kwargs or {}), limits(**changes)) as pool:
        lived = set()
        try:
            yield pool
        finally:
            lived |= {ProcessId.of(pid) for guard in pool.pids for pid in (guard, *descendants(guard))}
    assert not [process for process in lived if process.is_running]


async def begun(pool, crashes=0, kind="obeying", task=TASK):
    instance = pool.create(kind, crashes)
    shown = await instance.reset(task, 7)
    return instance, shown


def pid_in(observation):
    """The worker that an environment says it lives in."""
    return int(observation.text.split()[-1])


async def until(claim, timeout_s=20.0):
    """Wait until a claim holds."""
    async with asyncio.timeout(timeout_s):
        while not claim():  # noqa: ASYNC110 - what it waits for is another process
            await asyncio.sleep(0.02)


def is_gone(pid):
    return not Path(f"/proc/{pid}").exists() or not ProcessId.of(pid).is_running
