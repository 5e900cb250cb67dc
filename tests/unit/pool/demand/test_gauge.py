"""A pool is measured before it is decided how many engines it wants."""

from dataclasses import replace

import pytest

from rl_agent.pool.demand.demand import WantedRules
from rl_agent.pool.demand.gauge import SILENT_S, DemandGauge, TrainerStep
from rl_agent.pool.demand.records import EngineKind, Wanted
from rl_agent.pool.demand.wanted import WantedMemory, decide_wanted
from tests.support.pool_world import World

SPOT = EngineKind("spot", price_per_hour=3600.0, min_engines=0, max_engines=4, start_s=60.0)


def join(world: World, name: str, kind: str) -> str:
    engine = world.join(name)
    record = world.state.engines[engine.engine_id]
    record.offer = replace(record.offer, price_per_hour=3600.0, kind=kind)
    return engine.engine_id


def test_engines_count_by_kind_and_unknown_kinds_count_as_none():
    world, gauge = World(), DemandGauge((SPOT,), spent_before=5.0)
    for name, kind in (("a", "spot"), ("b", "spot"), ("c", ""), ("d", "strange")):
        join(world, name, kind)
    world.run(10.0)
    measured = gauge.demand(world.state, world.now)
    assert measured.present == {"spot": 2, "": 2}
    assert measured.other_dollars_per_hour == 7200.0
    assert measured.spent == pytest.approx(45.0)
    assert (measured.open_requests, measured.open_tokens, measured.steps) == (0, 0.0, None)


def test_the_time_of_a_start_is_learned_from_asking_to_serving():
    world, gauge = World(), DemandGauge((SPOT,))
    gauge.demand(world.state, 0.0)
    gauge.decided(Wanted({"spot": 2}, ""), 0.0)
    world.run(40.0)
    join(world, "a", "spot")
    world.run(41.0)
    assert gauge.demand(world.state, 41.0).awaited_s == {"spot": (41.0,)}
    assert gauge.start_s == {"spot": pytest.approx(41.0)}
    gauge.decided(Wanted({"spot": 1}, ""), 41.0)  # the other one is no longer asked for
    assert gauge.demand(world.state, 41.0).awaited_s == {"spot": ()}
    join(world, "b", "spot")
    world.run(100.0)
    gauge.demand(world.state, 100.0)
    assert gauge.start_s == {"spot": pytest.approx(41.0)}


def test_speeds_outlive_the_engines_that_showed_them():
    world, gauge = World(), DemandGauge((SPOT,))
    engine = join(world, "a", "spot")
    world.run(1.0)
    world.submit("r", 90)
    world.run(10.0)
    speed = gauge.demand(world.state, world.now).tokens_per_s["spot"]
    assert speed == pytest.approx(world.state.engines[engine].tokens_per_s)
    world.engines[engine].crash()
    world.run(100.0)
    later = gauge.demand(world.state, world.now)
    assert later.present == {}
    assert later.tokens_per_s == {"spot": speed}
    assert later.speed("another") == speed


def test_steps_of_an_iteration_add_up_and_a_silent_trainer_never_waits():
    world, gauge = World(), DemandGauge((SPOT,))
    join(world, "a", "spot")
    for number in range(1, 4):
        world.run(10.0 * number)
        gauge.step_ended(world.state, TrainerStep(number, 10.0, steps_together=2), world.now)
    steps = gauge.demand(world.state, world.now).steps
    assert (steps.waited_s, steps.lasted_s) == (5.0, 20.0)
    assert steps.engine_s == pytest.approx(20.0)
    assert steps.idle_s == pytest.approx(20.0)
    assert gauge.demand(world.state, world.now + SILENT_S + 1).steps is None


def test_unread_texts_are_work_even_if_the_engine_speed_is_known():
    world, gauge = World(), DemandGauge((SPOT,))
    measured = gauge.demand(world.state, 0.0, num_unread=3)
    assert (measured.open_requests, measured.open_tokens) == (3, 3.0)
    rules = WantedRules((SPOT,), None, None, 0.1, 900.0, 30.0, 180.0)
    known = replace(measured, tokens_per_s={"spot": 1000.0})
    assert decide_wanted(rules, WantedMemory(), known, 0.0).wanted.counts == {"spot": 1}
