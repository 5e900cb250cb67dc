import asyncio

import pytest

from rl_agent.engine.wire import EnginePressure
from rl_agent.errors import EngineError, RetryLater
from rl_agent.rollout.collector.limit import EngineGate, LimitRule, follow_pressure

RULE = LimitRule(min_sessions=8, max_sessions=128)


@pytest.mark.parametrize(
    ("limit", "running", "waiting", "in_use", "expected"),
    [
        pytest.param(128, 64, 0, 128, 128, id="full and at the maximum"),
        pytest.param(64, 64, 0, 64, 72, id="full and nobody waits"),
        pytest.param(8, 8, 0, 8, 9, id="full and small"),
        pytest.param(64, 40, 0, 40, 64, id="places left: no reason to change"),
        pytest.param(128, 64, 64, 128, 96, id="many wait: a quarter down"),
        pytest.param(80, 64, 16, 80, 72, id="some wait: down to what runs and a short queue"),
        pytest.param(72, 64, 8, 72, 81, id="a short queue is wanted"),
        pytest.param(128, 0, 128, 128, 96, id="a burst of prompts costs a quarter only"),
        pytest.param(10, 2, 8, 10, 8, id="never below the minimum"),
        pytest.param(8, 0, 100, 8, 8, id="at the minimum"),
    ],
)
def test_the_limit_follows_the_engine(limit, running, waiting, in_use, expected):
    assert RULE.next_limit(limit, EnginePressure(running, waiting), in_use=in_use) == expected


def test_the_limit_settles_just_above_what_the_engine_runs():
    capacity, limit, seen = 50, 128, []
    for _ in range(30):
        sample = EnginePressure(running=min(limit, capacity), waiting=max(0, limit - capacity))
        limit = RULE.next_limit(limit, sample, in_use=limit)
        seen.append(limit)

    assert all(capacity <= limit <= 1.3 * capacity for limit in seen[-10:])


async def test_places_are_given_in_the_order_of_asking():
    gate, order = EngineGate(1), []

    async def use(name):
        async with gate:
            order.append(name)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as jobs:
        for name in "abc":
            jobs.create_task(use(name))
    assert order == ["a", "b", "c"]
    assert gate.in_use == 0


async def test_a_cancelled_waiter_takes_no_place():
    gate = EngineGate(1)
    await gate.__aenter__()
    async with asyncio.TaskGroup() as jobs:
        waiter = jobs.create_task(gate.__aenter__())
        await asyncio.sleep(0)
        await gate.__aexit__(None, None, None)  # the place comes, and with it
        waiter.cancel()  # the cancellation

    assert gate.in_use == 0
    async with asyncio.timeout(1):
        await gate.__aenter__()


async def test_a_higher_limit_lets_waiters_in_and_a_lower_one_throws_nobody_out():
    gate = EngineGate(1)
    async with asyncio.TaskGroup() as jobs:
        for _ in range(3):
            jobs.create_task(gate.__aenter__())
        await asyncio.sleep(0)
        assert (gate.in_use, gate.queued) == (1, 2)
        gate.set_limit(3)
    gate.set_limit(1)
    assert (gate.in_use, gate.queued) == (3, 0)


async def test_waiting_and_idle_time_are_measured():
    now = 0.0
    gate = EngineGate(1, clock=lambda: now)
    now = 2.0
    await gate.__aenter__()
    async with asyncio.TaskGroup() as jobs:
        waiter = jobs.create_task(gate.__aenter__())
        await asyncio.sleep(0)
        now = 5.0
        await gate.__aexit__(None, None, None)
    assert waiter.result() == 3.0
    await gate.__aexit__(None, None, None)
    now = 6.0
    assert gate.idle_s() == 3.0


def test_a_maximum_below_the_minimum_wins():
    assert LimitRule(8, 4).next_limit(4, EnginePressure(4, 0), in_use=4) == 4


async def test_a_silent_server_is_given_a_minute():
    now, requests = 0.0, 0

    async def pressure():
        nonlocal requests
        requests += 1
        if requests == 50:
            return EnginePressure(1, 0)
        raise RetryLater("silence")

    async def pass_time(seconds):
        nonlocal now
        now += seconds

    with pytest.raises(RetryLater):
        await follow_pressure(EngineGate(8), RULE, pressure, sleep=pass_time, clock=lambda: now)
    assert now == 50 + 61


async def test_a_server_without_metrics_keeps_the_full_limit():
    async def pressure():
        raise EngineError("404")

    async def at_once(seconds):
        pass

    gate = EngineGate(128)
    await follow_pressure(gate, RULE, pressure, sleep=at_once)
    assert gate.limit == 128
