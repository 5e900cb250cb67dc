"""Work and cost of a pool's engines, of those that are there and of all that ever were."""

import pytest

from rl_agent.pool.scheduler.state import totals_of
from tests.support.pool_world import World, ready_world


def test_an_engine_that_is_gone_is_paid_for_until_its_end_and_not_beyond():
    world = World()
    engine = world.join("a", price=3600.0)
    world.run(10.0)
    engine.crash()
    world.run(100.0)
    totals = totals_of(world.state, world.now)
    assert (totals.up_s, totals.cost) == (pytest.approx(10.0), pytest.approx(10.0))
    assert totals.idle_s == pytest.approx(10.0, abs=0.2)  # all of it but its start


def test_sums_go_on_however_many_engines_are_gone():
    world = World(is_checking=False)
    for number in range(400):
        engine = world.join(f"e{number}", price=3600.0)
        world.run(world.now + 2.0)
        engine.crash()
    assert totals_of(world.state, world.now).cost == pytest.approx(800.0)


def test_an_engine_with_work_is_not_idle():
    world, _ = ready_world("a", speed=10.0)
    world.submit("r", 90)
    world.run(10.0)
    totals = totals_of(world.state, world.now)
    assert totals.idle_s == pytest.approx(0.9, abs=0.05)
    assert totals.useful_tokens == pytest.approx(90, abs=10)
