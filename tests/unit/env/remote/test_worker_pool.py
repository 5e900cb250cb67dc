"""Real worker processes: what lives in them, what they do to each other, and what is left of them."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rl_agent.errors import (
    EnvironmentFailure,
    EnvironmentLost,
    EnvironmentRefusal,
    EnvironmentUnavailable,
)
from rl_agent.types import Task
from tests.unit.env.remote.pools import begun, is_gone, pid_in, until, workers


async def test_an_instance_in_a_worker_does_what_it_does_here():
    async with workers() as pool:
        instance, shown = await begun(pool, greeting="> ")
        assert shown.text.startswith("> hello 7 ")
        assert pid_in(shown) != os.getpid()

        result = await instance.step("look")
        assert (result.observation.text, result.reward) == ("1 look", 0.5)
        assert (result.done, result.truncated, result.changed, result.invalid) == (False, False, False, True)
        assert (await instance.step("done")).done
        with pytest.raises(EnvironmentFailure, match="ValueError: oh"):
            await instance.step("raise oh")
        with pytest.raises(EnvironmentFailure, match="SystemExit: 3"):
            await instance.step("leave")
        with pytest.raises(EnvironmentRefusal, match="returned dict, not a StepResult"):
            await instance.step("lie")
        with pytest.raises(EnvironmentRefusal, match="characters; at most"):
            await instance.step(f"long {2**24 + 1}")
        assert (await instance.step("look")).observation.text == "7 look"

        picture = Path((await instance.step("picture x")).observation.images[0])
        assert picture.read_bytes() == b"x" * 100  # noqa: ASYNC240
        await instance.close()
        await instance.close()
        assert pool.instances == 0
    assert not picture.parent.exists()


async def test_what_no_attempt_can_change_is_told_apart():
    async with workers() as pool:
        with pytest.raises(EnvironmentRefusal, match="no page"):
            await begun(pool, task=Task("t", "", "obeying", "easy", extra={"refuses": True}))
        with pytest.raises(EnvironmentUnavailable, match="no browser"):
            await begun(pool, task=Task("t", "", "obeying", "easy", extra={"unavailable": True}))
        with pytest.raises(EnvironmentRefusal, match="no environment 'other'"):
            await begun(pool, kind="other")
        with pytest.raises(EnvironmentRefusal, match=r"does not take these env_config.kwargs: .*'colour'"):
            await begun(pool, colour="red")


async def test_settings_that_a_kind_must_have_reach_it_in_a_worker():
    async with workers() as pool:
        assert (await begun(pool, kind="demanding", colour="red"))[1].text.startswith("red hello 7 ")
        with pytest.raises(EnvironmentRefusal, match="missing a required argument: 'colour'"):
            await begun(pool, kind="demanding")


@pytest.mark.extended
async def test_instances_are_spread_over_the_workers():
    async with workers(workers=2) as pool:
        instances = await asyncio.gather(*(begun(pool) for _ in range(6)))
        pids = [pid_in(shown) for _, shown in instances]
        assert sorted(pids.count(pid) for pid in set(pids)) == [3, 3]


async def test_a_call_that_nobody_waits_for_is_cancelled_there():
    async with workers() as pool:
        instance, _ = await begun(pool)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await instance.step("wait 600")
        async with asyncio.timeout(5):
            assert (await instance.step("look")).observation.text == "2 look"


async def test_a_worker_that_crashes_costs_its_episodes_an_attempt_and_is_replaced():
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


@pytest.mark.extended
async def test_suspects_of_a_crash_share_a_worker_with_few_others_and_then_with_none():
    async with workers(workers=4) as pool:
        few = [pid_in(shown) for _, shown in await asyncio.gather(*(begun(pool, 1) for _ in range(8)))]
        alone = [pid_in(shown) for _, shown in await asyncio.gather(*(begun(pool, 5) for _ in range(2)))]
        assert sorted(few.count(pid) for pid in set(few)) == [4, 4]
        assert len({*few, *alone}) == 4
        waiting = pool.create("obeying", {}, 2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await waiting.place()


async def test_a_worker_whose_loop_is_blocked_is_ended_and_the_one_who_did_it_is_named():
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


@pytest.mark.extended
async def test_a_worker_is_replaced_after_so_many_episodes_and_loses_none():
    async with workers(max_episodes=2) as pool:
        (first, one), (second, two) = await begun(pool), await begun(pool)
        assert pid_in(one) == pid_in(two)
        third, three = await begun(pool)
        assert pid_in(three) != pid_in(one)
        for instance in (first, second, third):
            assert (await instance.step("look")).observation.text == "1 look"
            await instance.close()
        await until(lambda: is_gone(pid_in(one)))


@pytest.mark.extended
async def test_a_worker_is_replaced_by_age_and_by_memory():
    async with workers(max_age_s=0.5) as pool:
        instance, shown = await begun(pool)
        await asyncio.sleep(0.6)
        await instance.close()
        await until(lambda: is_gone(pid_in(shown)))
    async with workers(max_rss_mib=400.0) as pool:
        instance, shown = await begun(pool)
        await instance.step("leak 380")
        await until(lambda: any(worker.retiring for worker in pool._workers), 30)
        assert (await instance.step("look")).observation.text == "2 look"
        await instance.close()
        await until(lambda: is_gone(pid_in(shown)))


@pytest.mark.extended
async def test_a_worker_with_twice_the_memory_is_ended_at_once():
    async with workers(max_rss_mib=150.0) as pool:
        instance, _ = await begun(pool)
        with pytest.raises(EnvironmentLost, match=r"twice env_config\.worker_max_rss_mib"):
            await asyncio.gather(instance.step("leak 400"), instance.step("wait 60"))


@pytest.mark.extended
async def test_a_worker_in_which_something_does_not_close_is_not_used_again():
    async with workers() as pool:
        instance, shown = await begun(pool, kind="never_closing")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await instance.close()
        _, again = await begun(pool)
        assert pid_in(again) != pid_in(shown)


async def test_a_worker_that_cannot_start_is_said_so(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    async with workers() as pool:
        with pytest.raises(EnvironmentUnavailable, match="does not start"):
            await pool.create("obeying", {}).place()
