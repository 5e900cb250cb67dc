"""Responses of one weight version: engines finish what they began, then take the next."""

from dataclasses import replace

import pytest

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.records import RequestState, Weights
from rl_agent.pool.scheduler.reports import WeightsReport
from rl_agent.pool.scheduler.state import totals_of
from tests.support.pool_world import RULES, ready_world, record

LIMIT_S = 50.0


def publish(world, version, finish_within_s=LIMIT_S):
    weights = Weights(
        version, f"digest {version}", ("tcp://10.0.0.1:7000",), "token", version, finish_within_s
    )
    world.handle(events.WeightsWanted(weights))


def follow(world, engine):
    """Play a worker until the world ends: fetch the wanted version, ask now and again, load when it may."""

    def look():
        if not engine.is_alive or engine.engine_id not in world.state.engines:
            return
        wanted, own = world.state.weights, record(world, engine)
        if own.is_switching:
            engine.report(WeightsReport(own.weights.fetched_version, f"digest {own.weights.fetched_version}"))
        elif own.weights.fetched_version is not None:
            engine.report(own.weights)
        elif wanted is not None and own.weight_version < wanted.weight_version:
            engine.fetch_wanted()
        world.at(world.now + 0.25, look)

    look()


def holder_and_others(*engines):
    """The engine that has requests, and then the others."""
    [holder] = [engine for engine in engines if engine.attempts]
    return holder, *(engine for engine in engines if engine is not holder)


def sampling_world(*names, **more):
    """A world that samples a request, the engine that has it, and the others."""
    world, engines = ready_world(*names)
    world.submit("r0", 400, **more)
    world.run(3.0)
    return world, *holder_and_others(*engines)


def versions(world):
    """The version that sampled the tokens of each request."""
    return {
        request_id.name: sorted({span.weight_version for span in request.spans})
        for request_id, request in world.state.requests.items()
    }


def test_engine_loads_weights_after_it_finishes_and_gets_no_new_requests():
    world, [engine] = ready_world("a")
    world.submit("old", 400)
    world.run(2.0)
    publish(world, 1)
    world.submit("before the fetch", 400)
    engine.fetch_wanted()
    world.submit("new", 40)
    assert not record(world, engine).is_switching
    assert world.request("new").state is RequestState.QUEUED
    follow(world, engine)
    world.run_to_a_right_end(100)
    assert versions(world) == {"old": [0], "before the fetch": [0], "new": [1]}
    assert world.state.account.moves == 0
    assert 5.0 < record(world, engine).finishing_s < 8.5


def test_an_engine_without_requests_takes_them_at_once():
    world, [engine] = ready_world("a")
    publish(world, 1)
    engine.fetch_wanted()
    assert record(world, engine).is_switching
    world.submit("new", 40)
    assert not engine.attempts, "it was given a request while it took new weights"
    engine.load_wanted()
    assert engine.attempts


def test_others_that_have_the_new_weights_take_what_is_new():
    world, engines = ready_world("a", "b")
    world.submit("old", 4000)
    holder, other = holder_and_others(*engines)
    publish(world, 1)
    for engine in (holder, other):
        engine.fetch_wanted()
    other.load_wanted()
    for number in range(20):
        world.submit(f"r{number}", 40, seed=number, min_weight_version=number % 2)
    assert len(holder.attempts) == 1 and len(other.attempts) == 20


def test_what_is_not_finished_in_time_goes_on_with_the_new_weights():
    world, [engine] = ready_world("a")
    world.submit("long", 4000)
    publish(world, 1)
    follow(world, engine)
    world.run_to_a_right_end(1000)
    assert versions(world) == {"long": [0, 1]}
    assert LIMIT_S <= record(world, engine).finishing_s < LIMIT_S + 1.0


def test_partial_response_continues_at_an_engine_with_its_weights():
    world, holder, same, other = sampling_world("a", "b", "c")
    publish(world, 1)
    same.fetch_wanted()  # it has nothing: it would load now
    other.load_wanted()
    same.report(WeightsReport())  # the load failed: it serves on
    holder.die()
    assert world.attempts_at(same) == ["r0"] and not other.attempts
    world.run_to_a_right_end(100)
    assert versions(world) == {"r0": [0]}
    assert world.request("r0").restarts == 0


def test_finishing_engine_accepts_only_responses_begun_by_its_weights():
    world, [first, second] = ready_world("a", "b", capacity=4)
    for number in range(2):
        world.submit(f"r{number}", 400, seed=number)
    world.run(2.0)
    assert len(first.attempts) == len(second.attempts) == 1
    publish(world, 1)
    follow(world, first)
    world.submit("new", 40, min_weight_version=1)
    second.die()
    assert sorted(world.attempts_at(first)) == ["r0", "r1"]
    world.run_to_a_right_end(200)
    assert versions(world) == {"r0": [0], "r1": [0], "new": [1]}


@pytest.mark.parametrize("is_read_along", [False, True])
def test_response_without_its_weights_restarts_unless_it_is_read_along(is_read_along):
    world, holder, other = sampling_world("a", "b", is_read_along=is_read_along)
    sampled = len(world.request("r0").token_ids)
    publish(world, 1)
    other.load_wanted()
    holder.crash()
    world.run_to_a_right_end(100)
    assert versions(world) == {"r0": [0, 1] if is_read_along else [1]}
    assert sampled > 0 and world.request("r0").restarts == (not is_read_along)
    totals = totals_of(world.state, world.now)
    assert (totals.recomputed_tokens, totals.useful_tokens) == (0 if is_read_along else sampled, 400)


def test_a_response_keeps_its_tokens_while_no_engine_is_there_at_all():
    """An only engine takes turns with a trainer: it comes back with the weights that it had."""
    world, [engine] = ready_world("a")
    publish(world, 1)
    engine.load_wanted()
    world.submit("r0", 400)
    world.run(3.0)
    world.handle(events.DrainAsked(engine.engine_id, world.now, "the trainer's turn"))
    publish(world, 2)
    world.run(5.0)
    again = world.join("a")
    again.report(WeightsReport(1, "digest 1"))
    follow(world, again)
    world.submit("new", 40)
    world.run_to_a_right_end(100)
    assert versions(world)["r0"] == [1]
    assert world.request("r0").restarts == 0


def test_partial_response_waiting_at_the_first_publish_mixes_no_versions():
    world, [old, new] = ready_world("a", "b", capacity=1)
    for number in range(2):
        world.submit(f"r{number}", 400, seed=number)
    world.run(3.0)
    new.crash()  # its request waits for the other's place
    publish(world, 1)
    fresh = world.join("c")
    fresh.load_wanted()
    follow(world, old)
    world.run_to_a_right_end(200)
    assert all(len(each) == 1 for each in versions(world).values())


def test_engine_serves_after_a_failed_load_and_finishes_before_a_retry():
    world, [engine] = ready_world("a")
    publish(world, 1)
    engine.fetch_wanted()
    engine.report(WeightsReport(problem="broken"))
    world.submit("r0", 400)
    assert engine.attempts
    engine.fetch_wanted()
    assert not record(world, engine).is_switching


def test_finishing_is_no_lag_and_a_hanging_load_is():
    rules = replace(RULES, weights_timeout_s=20.0)
    world, [engine] = ready_world("a", rules=rules)
    world.submit("long", 1500)  # 30 s
    publish(world, 1)
    engine.fetch_wanted()
    world.run(35.0)
    assert engine.is_ready and world.request("long").state is RequestState.COMPLETED
    engine.report(record(world, engine).weights)
    assert record(world, engine).is_switching
    world.run(world.now + rules.weights_timeout_s - 1)
    assert engine.is_ready
    world.run(world.now + 2)
    assert not engine.is_ready and "stays at weight version 0" in world.state.departed[-1].reason


def test_engine_keeps_its_weights_while_responses_they_began_wait_for_it():
    world, holder, other = sampling_world("a", "b")
    publish(world, 1)
    world.handle(events.Beat(other.engine_id, problem="no answer to /health"))
    holder.die()
    other.fetch_wanted()
    assert not other.attempts and not record(world, other).is_switching
    follow(world, other)
    world.run_to_a_right_end(100)
    assert versions(world) == {"r0": [0]}


def test_a_suspect_whose_weights_are_gone_is_tried_anew():
    world, engines = ready_world("a", "b", "c", speed=1.0)
    world.submit("r0", 40)
    world.run(30.0)
    publish(world, 1)
    holder, same, new = holder_and_others(*engines)
    new.load_wanted()
    holder.crash()
    assert same.attempts
    same.crash()
    assert world.request("r0").num_deaths == 1
    world.run_to_a_right_end(200)
    assert versions(world) == {"r0": [1]}


def test_no_work_is_moved_to_an_engine_that_only_finishes():
    world, engines = ready_world("a", "b", speed=50.0, batch=1)
    publish(world, 1)
    world.submit("r0", 400)
    holder_and_others(*engines)[0].fetch_wanted()
    for number in range(1, 8):
        world.submit(f"r{number}", 400, seed=number)
    world.run(15.0)
    assert world.state.account.moves == 0


def test_work_is_not_evened_out_between_versions():
    world, engines = ready_world("a", "b", speed=50.0, batch=1)
    for number in range(8):
        world.submit(f"r{number}", 400, seed=number)
    world.run(4.0)
    publish(world, 1)
    for engine in engines:
        follow(world, engine)
    world.submit("short", 40)
    world.run_to_a_right_end(500)
    assert all(len(each) == 1 for each in versions(world).values())


@pytest.mark.parametrize("is_told", [True, False], ids=["told of its end", "not told"])
def test_engine_waits_for_an_episode_until_its_end_or_the_deadline(is_told):
    world, [engine] = ready_world("a")
    world.submit("turn 1", 40, episode="e")
    world.run(3.0)
    publish(world, 1)
    follow(world, engine)
    world.run(10.0)
    assert not record(world, engine).is_switching
    world.submit("turn 2", 40, episode="e")
    world.submit("other", 40, episode="f")
    world.run(15.0)
    assert versions(world) == {"turn 1": [0], "turn 2": [0], "other": []}
    if is_told:
        world.handle(events.EpisodeEnded("run", "e"))
        world.run(16.0)
    else:
        world.run(3.0 + LIMIT_S + 1.0)
    assert record(world, engine).weight_version == 1
    world.submit("turn 3", 40, episode="e")
    world.run_until_all_ended(200)
    assert (versions(world)["turn 3"], versions(world)["other"]) == ([1], [1])


def test_a_turn_that_asks_for_newer_weights_than_its_episode_has_gets_them():
    world, engines = ready_world("a", "b")
    publish(world, 0)
    world.submit("turn 1", 40, episode="e")
    _, other = holder_and_others(*engines)
    world.run(3.0)
    publish(world, 1)
    other.load_wanted()
    world.submit("turn 2", 40, episode="e", min_weight_version=1)
    world.run_until_all_ended(100)
    assert versions(world) == {"turn 1": [0], "turn 2": [1]}


def test_returning_engine_with_the_same_weights_waits_for_the_episode():
    world, [engine] = ready_world("a")
    publish(world, 1)
    engine.load_wanted()
    world.submit("turn 1", 40, episode="e")
    world.run(3.0)
    world.handle(events.DrainAsked(engine.engine_id, world.now, "the trainer's turn"))
    publish(world, 2)
    again = world.join("a")
    again.report(WeightsReport(1, "digest 1"))
    follow(world, again)
    world.run(10.0)
    world.submit("turn 2", 40, episode="e")
    world.run(15.0)
    assert versions(world) == {"turn 1": [1], "turn 2": [1]}
    world.handle(events.EpisodeEnded("run", "e"))
    world.run(16.0)
    assert record(world, again).weight_version == 2


def test_a_turn_goes_to_the_engine_that_has_the_turns_before_it():
    world, engines = ready_world("a", "b", "c")
    publish(world, 0)
    world.submit("turn 1", 40, episode="e")
    began, *_ = holder_and_others(*engines)
    world.run(3.0)
    publish(world, 1)
    for number in range(5):
        world.submit(f"r{number}", 400, seed=number)
    world.submit("turn 2", 40, episode="e")
    assert "turn 2" in world.attempts_at(began)


def test_engine_with_fetched_weights_accepts_requests_in_mixed_mode():
    world, [engine] = ready_world("a")
    publish(world, 1, finish_within_s=None)
    engine.fetch_wanted()
    world.submit("r0", 40)
    assert engine.attempts and record(world, engine).finishing_since is None
