"""Real worker processes: what lives in them, what they do to each other, and what is left of them."""

import asyncio
import os
import signal

import pytest

from rl_agent.errors import EnvironmentLost
from tests.unit.env.remote.pools import begun, is_gone, pid_in, until, workers


@pytest.mark.extended
async def test_instances_are_spread_over_the_workers():
    async with workers(workers=2) as pool:
        instances = await asyncio.gather(*(begun(pool) for _ in range(6)))
        pids = [pid_in(shown) for _, shown in instances]
        assert sorted(pids.count(pid) for pid in set(pids)) == [3, 3]


async def test_a_crashed_worker_costs_its_episodes_an_attempt_and_is_replaced(caplog):
    async with workers() as pool:
        (culprit, shown), (other, _) = await begun(pool), await begun(pool)
        with pytest.raises(EnvironmentLost, match="exit status 9") as lost:
            await culprit.step("exit 9")
        assert lost.value.is_suspect
        with pytest.raises(EnvironmentLost):
            await other.step("look")
        await culprit.close()
        await other.close()
        _, again = await begun(pool)
        assert pid_in(again) != pid_in(shown)
    assert "is lost with 2 episodes: exit status 9" in caplog.text


async def test_a_worker_that_was_told_to_end_is_lost_without_a_line(caplog):
    async with workers() as pool:
        instance, _ = await begun(pool)
        os.kill(pool.pids[0], signal.SIGTERM)
        with pytest.raises(EnvironmentLost, match="it was ended by SIGTERM"):
            await instance.step("block 60")
    assert not caplog.messages


@pytest.mark.extended
async def test_crash_suspects_share_a_worker_with_few_others_then_with_none():
    async with workers(workers=4) as pool:
        few = [pid_in(shown) for _, shown in await asyncio.gather(*(begun(pool, 1) for _ in range(8)))]
        alone = [pid_in(shown) for _, shown in await asyncio.gather(*(begun(pool, 5) for _ in range(2)))]
        assert sorted(few.count(pid) for pid in set(few)) == [4, 4]
        assert len({*few, *alone}) == 4
        waiting = pool.create("obeying", 2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await waiting.place()


@pytest.mark.extended
async def test_a_worker_is_replaced_after_so_many_episodes_and_loses_none():
    async with workers(max_episodes=2) as pool:
        (first, shown), (second, beside) = await begun(pool), await begun(pool)
        assert pid_in(shown) == pid_in(beside)
        third, again = await begun(pool)
        assert pid_in(again) != pid_in(shown)
        for instance in (first, second, third):
            assert (await instance.step("look")).observation.text == "1 look"
            await instance.close()
        await until(lambda: is_gone(pid_in(shown)))


@pytest.mark.extended
async def test_a_worker_with_twice_the_memory_is_ended_at_once():
    async with workers(max_rss_mib=150.0) as pool:
        instance, _ = await begun(pool)
        with pytest.raises(EnvironmentLost, match=r"twice env_config\.worker_max_rss_mib"):
            await asyncio.gather(instance.step("leak 400"), instance.step("wait 60"))
