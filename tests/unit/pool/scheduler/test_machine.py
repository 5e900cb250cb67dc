"""The pool's machine, one behaviour at a time."""

from dataclasses import replace

import pytest

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.records import EngineState, FailureKind, RequestState
from rl_agent.testing.pool_world import EOS, RULES, World, id_of, truth


def state_of(world, engine):
    found = world.state.engines.get(engine.engine_id)
    return found.state if found else EngineState.GONE


def request(world, request_id="r0"):
    return world.request(request_id)


def test_an_engine_gets_work_only_once_a_probe_has_seen_what_it_serves():
    world = World()
    world.submit("r0", 40)
    engine = world.join("a", start_s=2.0)
    assert state_of(world, engine) is EngineState.REGISTERED and not engine.attempts
    world.run(2.1)
    assert state_of(world, engine) is EngineState.READY and len(engine.attempts) == 1


def test_an_engine_with_another_model_loads_and_gets_nothing():
    world = World()
    world.join("a")
    world.run(1.0)
    liar = world.join("b", model="older")
    world.run(2.0)
    world.submit("r0", 8)
    assert state_of(world, liar) is EngineState.LOADING and not liar.attempts
    liar.model = "model"
    world.run(4.0)
    assert state_of(world, liar) is EngineState.READY


def test_a_new_model_empties_the_engines_that_hold_the_old_one():
    world = World()
    engine = world.join("a")
    world.run(1.0)
    world.submit("r0", 200)
    world.run(2.0)
    world.handle(events.ModelWanted("model-1", 1))
    assert state_of(world, engine) is EngineState.LOADING
    assert request(world).state is RequestState.QUEUED
    engine.model = "model-1"
    world.run_until_all_ended(100)
    assert [span.weight_version for span in request(world).spans] == [0, 1]
    assert request(world).weight_versions == (0, 1)
    assert list(request(world).token_ids) == truth((200, 0))


def test_an_older_weight_version_is_not_taken_back():
    world = World()
    world.handle(events.ModelWanted("model-2", 2))
    world.handle(events.ModelWanted("model-1", 1))
    assert (world.state.model, world.state.weight_version) == ("model-2", 2)


def test_a_silent_engine_is_gone_within_its_lease_and_its_tokens_are_kept():
    world = World()
    first = world.join("a")
    world.run(1.0)
    world.submit("r0", 400)
    world.run(3.0)
    first.is_stopped = True
    second = world.join("b")
    world.run(3.0 + RULES.lease_s)
    assert state_of(world, first) is EngineState.GONE
    made = request(world).attempt_start
    assert made > 0
    world.run_until_all_ended(100)
    assert second.sampled == 400 - made
    world.assert_all_right()


def test_an_engine_that_sends_tokens_lives_however_late_its_beats_are():
    world = World()
    engine = world.join("a")
    world.run(1.0)
    world.submit("r0", 800)
    engine.beats = False
    world.run(12.0)
    assert state_of(world, engine) is EngineState.READY
    engine.is_stopped = True
    world.run(12.0 + RULES.lease_s + 0.1)
    assert state_of(world, engine) is EngineState.GONE


def test_requests_wait_while_there_is_no_engine_and_go_on_when_one_joins():
    world = World()
    for number in range(3):
        world.submit(f"r{number}", 200, seed=number)
    engine = None
    for start in (10.0, 40.0, 70.0):
        world.run(start)
        engine = world.join(f"engine-{start}")
        world.run(start + 0.6)
        engine.crash()
    assert world.open_requests() == 3 and not world.state.engines
    world.join("last")
    world.run_until_all_ended(200)
    world.assert_all_right()


def test_a_request_without_any_engine_fails_at_its_deadline_and_says_so():
    world = World()
    world.submit("r0", 10, deadline_s=30.0)
    world.run(31.0)
    assert request(world).failure == "its deadline passed after 30.0 s with no engine in the pool"
    assert request(world).failure_kind is FailureKind.DEADLINE


def test_submitting_an_id_twice_is_submitting_it_once():
    world = World()
    world.submit("r0", 10)
    world.submit("r0", 10)
    world.join("a")
    world.run_until_all_ended(100)
    world.submit("r0", 10)
    assert world.state.account.submitted == 1
    world.assert_all_right()


def test_a_refused_request_fails_alone_and_its_engine_stays_trusted():
    world = World()
    engine = world.join("a")
    world.run(1.0)
    world.submit("r0", 100)
    world.handle(events.Broken(id_of("r0"), 1, "HTTP 400: no such parameter", is_refusal=True))
    assert request(world).failure == "refused by the engine: HTTP 400: no such parameter"
    assert request(world).failure_kind is FailureKind.REFUSED
    assert not world.state.engines[engine.engine_id].is_doubted


def test_a_broken_request_does_not_end_an_engine_that_still_answers():
    world = World()
    engine = world.join("a")
    world.run(1.0)
    world.submit("r0", 100)
    world.handle(events.Broken(id_of("r0"), 1, "HTTP 500"))
    assert request(world).state is RequestState.QUEUED, "nothing goes to an engine in doubt"
    world.run_until_all_ended(100)
    assert state_of(world, engine) is EngineState.READY
    assert world.state.account.engine_deaths == 0
    world.assert_all_right()


def test_a_request_that_healthy_engines_keep_breaking_off_fails_alone():
    world = World()
    for name in "abc":
        world.join(name, speed=20.0)
    world.run(1.0)
    world.submit("r0", 100)
    world.submit("r1", 100, seed=1)
    for _ in range(20):
        world.handle(events.Broken(id_of("r0"), request(world).attempt, "HTTP 500: boom"))
        world.run(world.now + 0.11)
    assert request(world).failure.endswith("attempts broke off at healthy engines; the last: HTTP 500: boom")
    assert request(world).failure_kind is FailureKind.BROKEN_OFF
    world.run_until_all_ended(100)
    assert not request(world, "r1").failure and len(world.state.engines) == 3


def test_an_engine_that_beats_but_gives_no_token_loses_the_request():
    world = World(rules=replace(RULES, stall_timeout_s=3.0, rebalance_gain_s=0.0))
    hung = world.join("a")
    world.run(1.0)
    world.submit("r0", 100)
    hung.attempts.clear()
    world.join("b")
    world.run(5.0)
    assert request(world).moves == 1
    assert state_of(world, hung) is EngineState.READY
    world.run_until_all_ended(100)
    world.assert_all_right()


def test_what_an_older_attempt_still_sends_is_dropped():
    world = World()
    world.join("a")
    world.run(1.0)
    world.submit("r0", 100)
    world.handle(events.Broken(id_of("r0"), 1, "reset"))
    world.run(3.0)
    made = len(request(world).token_ids)
    world.handle(events.Progress(id_of("r0"), 1, (99, 99), (-1.0, -1.0)))
    world.handle(events.Finished(id_of("r0"), 1, "stop"))
    assert len(request(world).token_ids) == made and request(world).is_open


def test_a_response_whose_last_token_arrived_without_the_word_is_not_sampled_past_its_end():
    world = World()
    world.join("a")
    world.run(1.0)
    world.submit("r0", 400)
    world.handle(events.Progress(id_of("r0"), 1, (11, EOS), (-0.1, -0.2)))
    world.handle(events.Broken(id_of("r0"), 1, "connection reset"))
    assert request(world).finish_reason == "stop"
    assert list(request(world).token_ids) == [11, EOS]


def test_an_engine_that_sends_too_many_tokens_is_cut_off_at_the_limit():
    world = World()
    world.join("a")
    world.run(1.0)
    world.submit("r0", 400, max_tokens=3)
    world.handle(events.Progress(id_of("r0"), 1, (11, 12, 13, 14), (-0.1,) * 4))
    assert list(request(world).token_ids) == [11, 12, 13]
    assert request(world).finish_reason == "length"


def test_a_request_that_cannot_be_continued_begins_afresh():
    world = World()
    first = world.join("a")
    world.run(1.0)
    world.submit("r0", 100, params={"presence_penalty": 0.5})
    world.run(2.0)
    made = len(request(world).token_ids)
    assert made
    first.crash()
    assert not request(world).token_ids
    assert world.state.departed[-1].recomputed_tokens == made
    world.join("b")
    world.run_until_all_ended(100)
    world.assert_all_right()


def test_registering_again_on_the_same_address_replaces_the_old_incarnation():
    world = World()
    old = world.join("a")
    world.run(1.0)
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


@pytest.mark.parametrize("position", [0, 3, 50])
@pytest.mark.parametrize("resumable", [True, False])
def test_a_request_that_kills_engines_is_found_and_fails_alone(position, resumable):
    world = World(poison=frozenset({7}), poison_position=position)
    engines = [world.join(f"e{i}") for i in range(6)]
    world.run(1.0)
    params = {} if resumable else {"presence_penalty": 0.5}
    for number in range(200):
        world.submit(f"r{number}", 70, seed=number, params=params)
    world.run_until_all_ended(300)
    failed = [r.order.prompt_token_ids[1] for r in world.state.requests.values() if r.failure]
    assert failed == [7]
    assert sum(not engine.is_alive for engine in engines) <= RULES.engine_deaths_limit + 1
    world.assert_all_right()


def test_twenty_deaths_in_a_row_lose_nothing_and_sample_no_token_twice():
    world = World()
    for number in range(256):
        world.submit(f"r{number}", 200 + number, seed=number)
    for number in range(21):
        world.join(f"e{number}")
        world.run(world.now + 4.0)
        if number < 20:
            list(world.engines.values())[number].crash()
    world.run_until_all_ended(2000)
    assert world.state.account.engine_deaths == 20
    assert world.state.account.failed == 0
    wanted = sum(200 + number for number in range(256))
    assert world.state.account.tokens == sum(e.sampled for e in world.engines.values()) == wanted
    world.assert_all_right()


def test_a_stop_string_across_the_seam_ends_the_response():
    world = World()
    world.join("a")
    world.join("b")
    world.run(1.0)
    world.submit("r0", 400, params={"stop": ["END"]})
    first, second = truth((400, 0))[:2]
    world.handle(events.Progress(id_of("r0"), 1, (first,), (-0.1,), "so E"))
    world.handle(events.Broken(id_of("r0"), 1, "reset"))
    world.handle(events.Progress(id_of("r0"), 2, (second,), (-0.1,), "ND and more"))
    assert (request(world).finish_reason, request(world).stop_reason) == ("stop", "END")
    assert "".join(request(world).texts) == "so "


def test_runs_share_the_places_evenly_whoever_came_first():
    world = World()
    for number in range(100):
        world.submit(f"first{number}", 100, run="first")
    for number in range(100):
        world.submit(f"second{number}", 100, run="second")
    world.join("a", capacity=10)
    world.run(1.0)
    assert world.state.at_engines == {"first": 5, "second": 5}


def test_runs_that_are_over_leave_nothing_behind():
    """A manager may serve runs for months."""
    world = World()
    world.join("a", capacity=4)
    world.run(1.0)
    for number in range(8):
        world.submit(f"r{number}", 5, run=f"run-{number}")
    world.run_until_all_ended(limit_s=1000)
    world.assert_all_right()
    assert not world.state.queues and not world.state.at_engines


def test_siblings_stay_together_while_that_costs_nothing():
    world = World(rules=replace(RULES, rebalance_gain_s=0.0))
    engines = [world.join(name) for name in "abcd"]
    world.run(1.0)
    for number in range(16):
        world.submit(f"r{number}", 50, group=f"g{number // 4}")
    homes = {}
    for engine in engines:
        for found in engine.attempts.values():
            homes.setdefault(found.request.order.group, set()).add(engine.name)
    assert max(map(len, homes.values())) <= 2
    assert {len(engine.attempts) for engine in engines} != {16, 0}, "affinity must not crowd one engine"


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded", "least_work"])
def test_equal_requests_are_spread_evenly_by_every_policy(policy):
    world = World(rules=replace(RULES, policy=policy))
    engines = [world.join(name) for name in "abc"]
    world.run(1.0)
    for number in range(30):
        world.submit(f"r{number}", 50)
    assert [len(engine.attempts) for engine in engines] == [10, 10, 10]


def test_the_tail_of_a_batch_moves_to_an_idle_faster_engine():
    world = World()
    world.join("slow", speed=10.0)
    world.run(1.0)
    world.submit("warm", 30)
    world.submit("long", 2000)
    world.run(8.0)
    fast = world.join("fast", speed=100.0)
    world.run_until_all_ended(100)
    assert fast.sampled > 1500
    world.assert_all_right()


def test_forgotten_requests_leave_no_timers_behind():
    world = World(is_checking=False)
    world.join("a", speed=1e4, batch=1e4, capacity=1000)
    world.run(1.0)
    for number in range(6000):
        world.submit(f"r{number}", 4)
        if number % 500 == 499:
            world.run(world.now + 1.0)
            world.handle(events.Forgotten(tuple(world.state.requests)))
    assert not world.state.requests
    assert len(world.state.timers) < 5000
