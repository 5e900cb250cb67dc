"""A worker whose event loop is blocked is found out and named, also after its disk was full."""

import asyncio
import threading
import time

import pytest

from rl_agent.env.remote import worker
from rl_agent.env.remote.worker import LoopWatch
from rl_agent.errors import EnvironmentLost
from tests.unit.env.remote.pools import begun, is_gone, pid_in, until, workers


async def test_a_worker_with_a_blocked_loop_is_ended_and_the_culprit_is_named():
    async with workers(timeout_s=3.0) as pool:
        (culprit, shown), (other, _) = await begun(pool), await begun(pool)
        blocking = asyncio.ensure_future(culprit.step("block 600"))
        await asyncio.sleep(0.3)
        with pytest.raises(EnvironmentLost, match="another episode's environment") as innocent:
            await other.step("look")
        assert not innocent.value.is_suspect
        with pytest.raises(
            EnvironmentLost, match=r"step at .*kinds\.py:.*has blocked it.*this episode's"
        ) as own:
            await blocking
        assert own.value.is_suspect
        await until(lambda: is_gone(pid_in(shown)))


@pytest.mark.extended
async def test_a_worker_in_which_something_does_not_close_is_not_used_again():
    async with workers() as pool:
        instance, shown = await begun(pool, kind="never_closing")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await instance.close()
        _, again = await begun(pool)
        assert pid_in(again) != pid_in(shown)


async def test_a_block_is_written_once_a_full_disk_has_room_again(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "BLOCKED_AFTER_S", 0.02)
    monkeypatch.setattr(worker, "_TICK_S", 0.005)
    file = tmp_path / "missing" / "blocked.json"  # as a file that cannot be written
    watching = asyncio.ensure_future(LoopWatch(asyncio.get_running_loop(), file).run())
    await asyncio.sleep(0)
    over = time.monotonic() + 0.1
    blocked_until(lambda: time.monotonic() > over)
    file.parent.mkdir()
    blocked_until(file.exists)
    watching.cancel()
    await asyncio.wait({watching})

    assert "loop watch" not in {thread.name for thread in threading.enumerate()}


def blocked_until(claim):
    deadline = time.monotonic() + 20
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.01)
