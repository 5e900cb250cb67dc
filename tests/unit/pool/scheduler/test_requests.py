"""A request from its submission to its end, whatever engines answer."""

from dataclasses import replace

import pytest

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.records import EngineState, FailureKind, Order, PartialResponse, RequestState
from tests.support.pool_world import EOS, RULES, World, id_of, ready_world, state_of, truth


def test_a_request_without_any_engine_fails_at_its_deadline_and_says_so():
    world = World()
    world.submit("r0", 10, deadline_s=30.0)
    world.run(31.0)
    assert world.request("r0").failure == "its deadline passed after 30.0 s with no engine in the pool"
    assert world.request("r0").failure_kind is FailureKind.DEADLINE


def test_submitting_an_id_twice_is_submitting_it_once():
    world, _ = ready_world("a")
    world.submit("r0", 10)
    world.submit("r0", 10)
    world.run_until_all_ended(100)
    world.submit("r0", 10)
    assert world.state.account.submitted == 1
    world.assert_all_right()


def test_a_refused_request_fails_alone_and_its_engine_stays_trusted():
    world, [engine] = ready_world("a")
    world.submit("r0", 100)
    world.handle(events.Broken(id_of("r0"), 1, "HTTP 400: no such parameter", is_refusal=True))
    request = world.request("r0")
    assert (request.failure, request.failure_kind) == ("HTTP 400: no such parameter", FailureKind.REFUSED)
    assert not world.state.engines[engine.engine_id].is_doubted


def test_a_broken_request_does_not_end_an_engine_that_still_answers():
    world, [engine] = ready_world("a")
    world.submit("r0", 100)
    world.handle(events.Broken(id_of("r0"), 1, "HTTP 500"))
    assert world.request("r0").state is RequestState.QUEUED, "nothing goes to an engine in doubt"
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
        world.handle(events.Broken(id_of("r0"), world.request("r0").attempt, "HTTP 500: boom"))
        world.run(world.now + 0.11)
    request = world.request("r0")
    assert request.failure.endswith("attempts broke off at healthy engines; the last: HTTP 500: boom")
    assert request.failure_kind is FailureKind.BROKEN_OFF
    world.run_until_all_ended(100)
    assert not world.request("r1").failure and len(world.state.engines) == 3


def test_an_engine_that_beats_but_gives_no_token_loses_the_request():
    world, [hung] = ready_world("a", rules=replace(RULES, stall_timeout_s=3.0, rebalance_gain_s=0.0))
    world.submit("r0", 100)
    hung.attempts.clear()
    world.join("b")
    world.run(5.0)
    assert world.request("r0").moves == 1
    assert state_of(world, hung) is EngineState.READY
    world.run_to_a_right_end(100)


def test_what_an_older_attempt_still_sends_is_dropped():
    world, _ = ready_world("a")
    world.submit("r0", 100)
    world.handle(events.Broken(id_of("r0"), 1, "reset"))
    world.run(3.0)
    sampled = len(world.request("r0").token_ids)
    world.handle(events.Progress(id_of("r0"), 1, (99, 99), (-1.0, -1.0), finish_reason="stop"))
    assert len(world.request("r0").token_ids) == sampled and world.request("r0").is_open


@pytest.mark.parametrize(
    ("sent", "kept", "finish"),
    [((11, EOS), [11, EOS], "stop"), ((11, 12, 13, 14), [11, 12, 13], "length")],
    ids=["a lost finish", "too many tokens"],
)
def test_a_response_ends_at_its_last_token_whatever_else_its_engine_sends(sent, kept, finish):
    world, _ = ready_world("a")
    world.submit("r0", 400, max_tokens=3)
    world.handle(events.Progress(id_of("r0"), 1, sent, (-0.1,) * len(sent)))
    world.handle(events.Broken(id_of("r0"), 1, "connection reset"))
    assert list(world.request("r0").token_ids) == kept
    assert world.request("r0").finish_reason == finish


def test_a_stop_string_across_the_seam_ends_the_response():
    world, _ = ready_world("a", "b")
    world.submit("r0", 400, params={"stop": ["END"]})
    first, second = truth((400, 0))[:2]
    world.handle(events.Progress(id_of("r0"), 1, (first,), (-0.1,), "so E"))
    world.handle(events.Broken(id_of("r0"), 1, "reset"))
    world.handle(events.Progress(id_of("r0"), 2, (second,), (-0.1,), "ND and more"))
    assert (world.request("r0").finish_reason, world.request("r0").stop_reason) == ("stop", "END")
    assert "".join(world.request("r0").texts) == "so "


def test_move_is_reported_once_with_both_engines_tokens_and_reason():
    world, (fast, slow) = ready_world("a", "b", rules=replace(RULES, rebalance_gain_s=0.0))
    world.submit("r0", 200)
    world.run(2.0)
    first, second = (fast, slow) if world.request("r0").engine_id == fast.engine_id else (slow, fast)
    sampled = len(world.request("r0").token_ids)
    assert sampled > 0 and world.moved == []
    world.handle(events.EngineEnded(first.engine_id, "its machine was taken", is_crash=True))
    expected = events.Moved(id_of("r0"), first.name, second.name, sampled, 0.0, "its machine was taken")
    assert world.moved == [expected]
    world.run_until_all_ended(100)
    assert world.moved == [expected] and world.state.account.moves == 1
    world.assert_all_right()


def test_restored_request_is_reported_as_moved_without_a_source_engine():
    world, (engine,) = ready_world("a")
    order = Order(id_of("r0"), (20, 0, 5, 6), 4096, {"eos_token_ids": [EOS]}, deadline=1e6)
    partial = PartialResponse(tuple(truth(order.prompt_token_ids)[:5]), (0.0,) * 5, "", (), 0)
    world.handle(events.Submitted(order, partial))
    assert [(move.source, move.target, move.tokens) for move in world.moved] == [("", engine.name, 5)]
