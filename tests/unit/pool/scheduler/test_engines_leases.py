"""An engine's lease is kept by signs of life that only a living engine gives."""

from dataclasses import replace

import pytest

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.records import EngineState
from tests.support.pool_world import RULES, id_of, ready_world


def record(world, engine):
    return world.state.engines.get(engine.engine_id)


SIGNS = {
    "beat": lambda engine, request: events.Beat(engine),
    "answered probe": lambda engine, request: events.Probed(engine, "model", 0),
    "tokens": lambda engine, request: events.Progress(request, 1, (11,), (-0.1,)),
    "bytes that are no tokens yet": lambda engine, request: events.BytesArrived(engine),
}


@pytest.mark.parametrize("sign", SIGNS.values(), ids=SIGNS)
def test_sign_of_life_renews_the_lease_and_a_silent_engine_is_gone_in_time(sign):
    world, [engine] = ready_world("a")
    world.submit("r0", 400)
    engine.die(silently=True)
    world.run(5.0)
    world.handle(sign(engine.engine_id, id_of("r0")))
    world.run(5.0 + RULES.lease_s - 0.001)
    assert record(world, engine), "its lease was not renewed"
    world.run(5.0 + RULES.lease_s)
    assert not record(world, engine)


def test_sampling_engine_keeps_its_requests_without_health_reports():
    world, [engine] = ready_world("a", rules=replace(RULES, rebalance_gain_s=0.0))
    other = world.join("b", speed=25.0)
    world.run(2.0)
    for number in range(8):
        world.submit(f"r{number}", 1000, seed=number)
    here = len(engine.attempts)
    engine.is_deaf = True
    world.run_until_all_ended(1000)
    assert here and engine.sampled == here * 1000
    assert world.state.account.moves == 0 and other.sampled == 8000 - engine.sampled
    assert not record(world, engine), "it has nothing to send any more, and does not answer"
    world.assert_all_right()


def test_an_engine_that_is_not_well_gets_nothing_new_until_it_answers():
    world, [engine] = ready_world("a", rules=replace(RULES, rebalance_gain_s=0.0))
    world.submit("r0", 2000)
    engine.is_deaf = True
    world.run(world.now + 3.0)
    world.submit("r1", 10, seed=1)
    world.run(world.now + 20.0)
    assert world.attempts_at(engine) == ["r0"]
    assert record(world, engine).state is EngineState.READY
    engine.is_deaf = False
    world.run(world.now + 3.0)
    assert world.ended[id_of("r1")] == 1
    world.run_to_a_right_end(100)


def test_unhealthy_report_renews_no_lease_and_is_given_as_the_reason():
    world, [engine] = ready_world("a")
    world.submit("r0", 400)
    world.run(2.0)
    engine.is_stopped = True
    world.run(2.0 + RULES.lease_s)
    assert not record(world, engine)
    assert world.state.departed[-1].reason == "its lease of 5 s is over: no answer to /health"


def test_answer_to_the_manager_outweighs_the_report_of_the_worker():
    world, [engine] = ready_world("a")
    for _ in range(20):
        world.handle(events.Beat(engine.engine_id, problem="no answer to /health"))
        assert record(world, engine).is_doubted
        world.run(world.now + 1.0)
        assert not record(world, engine).is_doubted, "its probe was answered"


def test_engine_without_a_worker_stays_only_while_it_sends_tokens():
    world, [engine] = ready_world("a")
    world.submit("r0", 1000)
    engine.beats = False
    world.run_until_all_ended(100)
    ended = world.now
    assert world.state.account.moves == 0 and record(world, engine)
    world.run(ended + RULES.lease_s)
    assert not record(world, engine)


def test_what_leaves_or_loads_is_told_apart_from_what_is_not_well():
    world, [leaving] = ready_world("a")
    loading = world.join("b", model="older")
    world.run(2.0)
    world.handle(events.DrainAsked(leaving.engine_id, world.now + 60.0, "a notice"))
    for engine in (leaving, loading):
        before = record(world, engine).reason
        world.handle(events.Beat(engine.engine_id, problem="no answer to /health"))
        assert record(world, engine).reason == before and not record(world, engine).is_doubted


def test_a_beat_ends_a_doubt_unless_it_may_have_set_out_before_the_break():
    world, [engine] = ready_world("a")
    world.submit("r0", 400)
    engine.start_s = 60.0  # so late it answers a probe
    world.handle(events.Broken(id_of("r0"), 1, "HTTP 500"))
    world.handle(events.Beat(engine.engine_id))
    assert record(world, engine).is_doubted
    world.run(world.now + 2.0)
    assert not record(world, engine).is_doubted
    world.run_to_a_right_end(100)
