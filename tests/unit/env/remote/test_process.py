"""A worker's process ends with everything that it started."""

import os
import signal

import pytest

from rl_agent.errors import EnvironmentLost, EnvironmentUnavailable
from tests.unit.env.remote.pools import begun, is_gone, pid_in, until, workers


@pytest.mark.extended
async def test_a_worker_that_is_frozen_is_ended_with_what_it_started():
    async with workers(timeout_s=2.0) as pool:
        instance, shown = await begun(pool)
        children = [int((await instance.step(how)).observation.text) for how in ("child", "detached")]
        os.kill(pid_in(shown), signal.SIGSTOP)
        with pytest.raises(EnvironmentLost, match="not answered"):
            await instance.step("look")
        await until(lambda: all(map(is_gone, (pid_in(shown), *children))))


@pytest.mark.extended
@pytest.mark.parametrize("victim", ["worker", "guard"])
async def test_a_killed_worker_leaves_nothing_of_what_it_started(victim):
    async with workers() as pool:
        instance, shown = await begun(pool)
        children = [int((await instance.step(how)).observation.text) for how in ("child", "detached")]
        os.kill(pid_in(shown) if victim == "worker" else pool.pids[0], signal.SIGKILL)
        with pytest.raises(EnvironmentLost, match="SIGKILL"):
            await instance.step("wait 60")
        await until(lambda: all(map(is_gone, (pid_in(shown), *children))))


async def test_a_worker_that_cannot_start_is_reported(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    async with workers() as pool:
        with pytest.raises(EnvironmentUnavailable, match="does not start"):
            await pool.create("obeying").place()
