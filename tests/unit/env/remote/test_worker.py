"""A worker whose event loop is blocked is ended, and the log shows where it was."""

import asyncio
import time

import pytest

from rl_agent.env.remote import worker
from rl_agent.errors import EnvironmentLost
from tests.unit.env.remote.pools import begun, is_gone, pid_in, until, workers


async def test_a_worker_with_a_blocked_loop_is_ended_with_its_episodes():
    async with workers(timeout_s=2.0) as pool:
        (culprit, shown), (other, _) = await begun(pool), await begun(pool)
        blocking = asyncio.ensure_future(culprit.step("block 600"))
        await asyncio.sleep(0.3)
        for step in (other.step("look"), blocking):
            with pytest.raises(EnvironmentLost, match="has not answered for 2 s") as lost:
                await step
            assert lost.value.is_suspect
        await until(lambda: is_gone(pid_in(shown)))


async def test_a_blocked_event_loop_is_shown_with_its_line(monkeypatch, capfd):
    monkeypatch.setattr(worker, "_SHOWN_AFTER_S", 0.05)
    watching = asyncio.ensure_future(worker.show_blocks())
    await asyncio.sleep(0)
    time.sleep(0.2)  # noqa: ASYNC251 - the block
    watching.cancel()
    assert "in test_a_blocked_event_loop_is_shown_with_its_line" in capfd.readouterr().err


@pytest.mark.extended
async def test_a_worker_in_which_something_does_not_close_is_not_used_again():
    async with workers() as pool:
        instance, shown = await begun(pool, kind="never_closing")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await instance.close()
        _, again = await begun(pool)
        assert pid_in(again) != pid_in(shown)
