"""The pool's machine, one behaviour at a time."""

from dataclasses import replace

import pytest

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.machine import check
from rl_agent.pool.scheduler.records import FailureKind, Order, PartialResponse, RequestId, RequestState
from tests.support.pool_world import EOS, RULES, World, id_of

PENALTY = {"presence_penalty": 0.5}


@pytest.mark.parametrize(
    ("position", "params", "interval", "more_deaths"),
    [
        *((position, params, 4, 1) for position in (0, 3, 50) for params in ({}, PENALTY)),
        (20, {}, 64, 2),  # chunks so long that others are lost with them
    ],
)
def test_a_request_that_kills_engines_is_found_and_fails_alone(position, params, interval, more_deaths):
    rules = replace(RULES, stream_interval=interval)
    world = World(rules=rules, poison=frozenset({7}), poison_position=position)
    engines = [world.join(f"e{i}") for i in range(7)]
    world.run(1.0)
    for number in range(100):
        world.submit(f"r{number}", 70, seed=number, params=params)
    world.run_until_all_ended(300)
    failed = [r.order.prompt_token_ids[1] for r in world.state.requests.values() if r.failure]
    assert failed == [7]
    assert sum(not engine.is_alive for engine in engines) <= RULES.engine_deaths_limit + more_deaths
    world.assert_all_right()


def test_twenty_deaths_in_a_row_lose_nothing_and_sample_no_token_twice():
    world = World()
    for number in range(256):
        world.submit(f"r{number}", 200 + number, seed=number)
    for number in range(21):
        world.join(f"e{number}")
        world.run(world.now + 4.0)
        if number < 20:
            assert world.open_requests()
            list(world.engines.values())[number].crash()
    world.run_until_all_ended(2000)
    assert world.state.account.engine_deaths == 20
    assert world.state.account.failed == 0
    wanted = sum(200 + number for number in range(256))
    assert world.state.account.tokens == sum(e.sampled for e in world.engines.values()) == wanted
    world.assert_all_right()


BAD = {"eos_token_ids": 2}


def world_with(params, **more):
    world = World(may_set_aside=True)
    engines = [world.join("a"), world.join("b")]
    world.run(1.0)
    for number in range(8):
        world.submit(f"r{number}", 200, params=params if number == 3 else {}, **more)
    world.run(2.0)
    return world, engines


@pytest.mark.parametrize("end", ["ended", "broken", "drained", "another model"])
def test_a_request_that_the_machine_cannot_move_fails_alone(end):
    world, engines = world_with(BAD)
    victim = next(e for e in engines if (id_of("r3"), 1) in e.attempts)
    if end == "ended":
        world.handle(events.EngineEnded(victim.engine_id, "killed", is_crash=True))
    elif end == "broken":
        world.handle(events.Broken(id_of("r3"), 1, "cut"))
    elif end == "drained":
        world.handle(events.DrainAsked(victim.engine_id, world.now + 0.1, "notice"))
    else:
        world.handle(events.ModelWanted("model-1", 1))
        for engine in engines:
            engine.model = "model-1"
    world.run_until_all_ended(200)
    bad = world.request("r3")
    assert bad.state is RequestState.FAILED and "TypeError" in bad.failure
    assert bad.failure_kind is FailureKind.INTERNAL
    assert len(world.set_aside) == 1 and "run/r3/0" in world.set_aside[0]
    assert (world.state.account.completed, world.state.account.failed) == (7, 1)
    world.assert_all_right()


def test_a_request_that_the_machine_cannot_read_on_fails_alone():
    world, _ = world_with({"stop": 5})
    world.handle(events.Progress(id_of("r3"), 1, (5,), (0.0,), "text"))
    assert world.request("r3").state is RequestState.FAILED
    check(world.state)
    world.run_until_all_ended(200)
    assert world.state.account.completed == 7


def test_what_an_earlier_manager_had_of_it_does_not_stop_a_start():
    world = World(may_set_aside=True)
    order = Order(RequestId("run", "r0"), (1,), 10, BAD, 100.0)
    world.handle(events.Submitted(order, PartialResponse((5, 6), (0.0, 0.0), "", (), 0)))
    assert world.request("r0").state is RequestState.FAILED and world.ended[id_of("r0")] == 1
    right = replace(order, request_id=id_of("r1"), params={"eos_token_ids": [EOS]})
    world.handle(events.Submitted(right, None))
    assert world.request("r1").state is RequestState.QUEUED


def test_an_event_that_makes_no_sense_is_named_and_the_rest_goes_on():
    world = World(may_set_aside=True)
    world.handle(events.WeightsWanted(None))  # type: ignore[arg-type]
    assert world.set_aside and world.set_aside[0].startswith("WeightsWanted: AttributeError")
    world.join("a")
    world.submit("r0", 20)
    world.run_until_all_ended(50)
    assert world.state.account.completed == 1
