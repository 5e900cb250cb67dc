"""Engines join, are probed, fall silent and leave: what that does to them and to their work."""

from rl_agent.pool.scheduler.records import EngineState
from tests.support.pool_world import RULES, World, ready_world, state_of


def test_an_engine_gets_work_only_once_a_probe_has_seen_what_it_serves():
    world = World()
    world.submit("r0", 40)
    engine = world.join("a", start_s=2.0)
    assert state_of(world, engine) is EngineState.REGISTERED and not engine.attempts
    world.run(2.1)
    assert state_of(world, engine) is EngineState.READY and len(engine.attempts) == 1


def test_an_engine_with_another_model_loads_and_gets_nothing():
    world, _ = ready_world("a")
    liar = world.join("b", model="older")
    world.run(2.0)
    world.submit("r0", 8)
    assert state_of(world, liar) is EngineState.LOADING and not liar.attempts
    liar.model = "model"
    world.run(4.0)
    assert state_of(world, liar) is EngineState.READY


def test_a_silent_engine_is_gone_within_its_lease_and_its_tokens_are_kept():
    world, [first] = ready_world("a")
    world.submit("r0", 400)
    world.run(3.0)
    first.is_stopped = True
    second = world.join("b")
    world.run(3.0 + RULES.lease_s)
    assert state_of(world, first) is EngineState.GONE
    kept = world.request("r0").attempt_start
    assert kept > 0
    world.run_until_all_ended(100)
    assert second.sampled == 400 - kept
    world.assert_all_right()


def test_registration_at_a_known_address_replaces_the_old_incarnation():
    world, [old] = ready_world("a")
    world.submit("r0", 100)
    world.run(1.5)
    old.is_alive = False
    new = world.join("a")
    assert state_of(world, old) is EngineState.GONE
    world.run_until_all_ended(100)
    assert new.sampled + old.sampled == 100
    world.assert_all_right()


def test_an_engine_that_keeps_dying_waits_before_it_gets_work_again():
    world = World()
    for _ in range(4):
        world.join("flapping").crash()
    engine = world.join("flapping")
    world.submit("r0", 10)
    world.run(2.0)
    assert state_of(world, engine) is EngineState.READY and not engine.attempts
    world.run(4.1)
    assert engine.attempts or not world.open_requests()
