"""A waiting request goes to an engine, and the runs take turns."""

from dataclasses import replace

import pytest

from rl_agent.pool.scheduler.policies import BUILT_IN
from tests.support.pool_world import RULES, World, ready_world


def test_runs_share_the_places_evenly_whoever_came_first():
    world = World()
    for number in range(100):
        world.submit(f"first{number}", 100, run="first")
    for number in range(100):
        world.submit(f"second{number}", 100, run="second")
    world.join("a", capacity=10)
    world.run(1.0)
    assert world.state.at_engines == {"first": 5, "second": 5}


def test_siblings_stay_together_while_that_costs_nothing():
    world, engines = ready_world(*"abcd", rules=replace(RULES, rebalance_gain_s=0.0))
    for number in range(16):
        world.submit(f"r{number}", 50, group=f"g{number // 4}")
    homes = {}
    for engine in engines:
        for attempt in engine.attempts.values():
            homes.setdefault(attempt.request.order.group, set()).add(engine.name)
    assert max(map(len, homes.values())) <= 2
    assert {len(engine.attempts) for engine in engines} != {16, 0}, "affinity must not crowd one engine"


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded", "least_work"])
def test_equal_requests_are_spread_evenly_by_every_policy(policy):
    world, engines = ready_world(*"abc", rules=replace(RULES, policy=BUILT_IN[policy]))
    for number in range(30):
        world.submit(f"r{number}", 50)
    assert [len(engine.attempts) for engine in engines] == [10, 10, 10]


def test_the_tail_of_a_batch_moves_to_an_idle_faster_engine():
    world, _ = ready_world("slow", speed=10.0)
    world.submit("warm", 30)
    world.submit("long", 2000)
    world.run(8.0)
    fast = world.join("fast", speed=100.0)
    world.run_until_all_ended(100)
    assert fast.sampled > 1500
    world.assert_all_right()
