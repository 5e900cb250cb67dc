"""Requests of an engine that is told to leave go on elsewhere."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.draining import MARGIN_S
from rl_agent.pool.scheduler.records import EngineState, RequestState, Weights
from rl_agent.pool.scheduler.reports import WeightsReport
from tests.support.pool_world import EOS, MODEL, RULES, World, id_of

CHUNK = 32
SPEED = 16.0
"""Tokens per second at which a chunk takes 2 s."""


def draining(
    length: int, *, deadline_s: float, after_s: float = 2.5, others: int = 1, **more: object
) -> tuple[World, str]:
    """A world in which an engine was told to leave half a second into another chunk of its one request."""
    world = World(chunk=CHUNK, rules=replace(RULES, stream_interval=CHUNK))
    world.join("a", speed=SPEED)
    world.run(1.0)
    world.submit("r0", length, **more)
    world.run(1.0 + after_s)
    engine_id = world.request("r0").engine_id
    for number in range(others):
        world.join(f"other-{number}", speed=SPEED)
    world.run(1.1 + after_s)
    drain(world, engine_id, deadline_s)
    return world, engine_id


def drain(world: World, engine_id: str, deadline_s: float) -> None:
    world.handle(events.DrainAsked(engine_id, world.now + deadline_s, "spot notice"))


def starts(world: World, request_id: str = "r0") -> list[int]:
    return [span.start for span in world.request(request_id).spans]


def lost(world: World) -> float:
    return sum(engine.lost for engine in world.engines.values())


def test_a_request_leaves_at_the_end_of_its_chunk_with_every_token():
    world, engine_id = draining(640, deadline_s=20.0)
    request, engine = world.request("r0"), world.state.engines[engine_id]
    assert request.engine_id == engine_id and engine.state is EngineState.DRAINING
    world.run(5.0)
    assert len(request.token_ids) == 64 and request.engine_id != engine_id
    assert not engine.running, "its worker may end it now"
    world.run_until_all_ended(100)
    assert starts(world) == [0, 64] and lost(world) == 0
    assert engine.state is EngineState.GONE and world.state.account.engine_deaths == 0
    world.assert_all_right()


def test_a_response_that_ends_before_the_deadline_ends_where_it_is():
    world, _ = draining(144, deadline_s=40.0, expected_tokens=144)
    world.run_until_all_ended(100)
    assert starts(world) == [0] and world.state.account.moves == 0
    world.assert_all_right()


def test_a_chunk_that_cannot_end_in_time_is_not_waited_for():
    world, engine_id = draining(640, deadline_s=0.5, after_s=4.5)
    assert world.request("r0").engine_id != engine_id
    assert 0 < lost(world) < CHUNK


def test_no_request_is_left_at_an_engine_when_it_goes():
    world, engine_id = draining(640, deadline_s=10.0)
    world.engines[engine_id].is_stopped = True  # its chunk never ends, though its worker still beats
    world.at(world.now + 4.0, lambda: world.handle(events.Beat(engine_id)))
    world.run(world.now + 10.0 - MARGIN_S + 0.01)
    assert world.request("r0").engine_id != engine_id
    assert world.state.engines[engine_id].state is EngineState.DRAINING
    world.run(world.now + MARGIN_S)
    assert engine_id not in world.state.engines


def test_while_no_other_engine_has_room_the_one_that_leaves_goes_on():
    world, _ = draining(1600, deadline_s=30.0, others=0)
    world.run(world.now + 30.0)
    request = world.request("r0")
    assert request.state is RequestState.QUEUED and not world.state.engines
    assert len(request.token_ids) >= SPEED * 20 and len(request.token_ids) % CHUNK == 0
    assert lost(world) == 0


def test_a_draining_engine_gets_nothing_new():
    world, engine_id = draining(1600, deadline_s=30.0, others=0)
    world.submit("r1", 50)
    world.run(world.now + 2.5)
    assert list(world.state.engines[engine_id].running) == [id_of("r0")]
    assert world.request("r1").state is RequestState.QUEUED


def test_a_second_notice_may_only_leave_less_time():
    world, engine_id = draining(1600, deadline_s=30.0, others=0)
    drain(world, engine_id, 60.0)
    drain(world, engine_id, 5.0)
    world.run(world.now + 5.01)
    assert engine_id not in world.state.engines


def test_what_cannot_be_continued_leaves_at_once_unless_it_ends_here():
    penalty = {"presence_penalty": 0.5}
    world, engine_id = draining(640, deadline_s=20.0, params=penalty, expected_tokens=640)
    assert world.request("r0").engine_id != engine_id
    world, engine_id = draining(128, deadline_s=60.0, params=penalty, expected_tokens=128)
    assert world.request("r0").engine_id == engine_id
    world.run_until_all_ended(100)
    assert world.state.account.moves == 0
    world.assert_all_right()


def test_the_last_chunk_of_a_response_is_not_its_next_engines_first():
    """The engine's finish alone says that a response is over if no end of turn is named."""
    world, _ = draining(64, deadline_s=30.0, params={"eos_token_ids": None})
    world.run_until_all_ended(100)
    request = world.request("r0")
    assert request.token_ids[-1] == EOS and len(request.token_ids) == 64 and request.moves == 0


def test_an_engine_that_dies_earlier_than_it_was_said_to_is_no_crash():
    world, engine_id = draining(640, deadline_s=60.0)
    world.engines[engine_id].die()
    world.handle(events.EngineEnded(engine_id, "its process ended", is_crash=True))
    request = world.request("r0")
    assert request.broken_attempts == 0 and not request.deaths and not request.questions
    assert world.state.account.engine_deaths == 0
    world.run_to_a_right_end(100)


@pytest.mark.parametrize("is_model", [True, False], ids=["another model", "weights loaded meanwhile"])
def test_a_draining_engine_keeps_only_what_it_may_still_generate(is_model):
    world, engine_id = draining(640, deadline_s=60.0, others=0)
    if is_model:
        world.handle(events.ModelWanted("another", 1))
        assert world.request("r0").state is RequestState.QUEUED
        return
    world.handle(events.WeightsWanted(Weights(1, "d", ("tcp://trainer:1",), "token", 1)))
    world.handle(events.Beat(engine_id, weights=WeightsReport(1, "d")))
    world.run(world.now + 2.0)
    spans = world.request("r0").spans
    assert [span.weight_version for span in spans] == [0, 1] and world.engines[engine_id].model == MODEL


@given(
    seed=st.integers(0, 2**32),
    speeds=st.lists(st.sampled_from([20.0, 50.0, 100.0]), min_size=2, max_size=5),
    chunk=st.sampled_from([1, 8, 32]),
    drains=st.lists(st.floats(1.0, 60.0), max_size=6),
)
def test_with_time_left_a_drain_gives_nothing_back_to_be_sampled_again(seed, speeds, chunk, drains):
    """However loaded they are; a chunk takes at most 8 s here."""
    random_ = random.Random(seed)
    world = World(chunk=chunk, rules=replace(RULES, stream_interval=chunk))
    for number, speed in enumerate(speeds):
        world.join(f"e{number}", speed=speed, batch=16, capacity=64)
    for number in range(random_.randint(1, 120)):
        length, when = random_.randint(2, 600), random_.uniform(0.5, 50.0)
        world.at(when, lambda number=number, length=length: world.submit(f"r{number}", length, seed=number))
    for number, when in enumerate(drains):

        def leave(number: int = number) -> None:
            ready = [engine for engine in world.engines.values() if engine.is_ready]
            if len(ready) > 1:
                engine = random_.choice(ready)
                before[engine.engine_id] = engine.lost
                drain(world, engine.engine_id, 30.0)

        world.at(when, leave)
    before: dict[str, float] = {}
    world.run_to_a_right_end(5000)
    for engine_id, lost_before in before.items():
        assert world.engines[engine_id].lost == lost_before
