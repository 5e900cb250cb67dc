"""A simulated engine is as fast as its longest request lets it be."""

from dataclasses import replace

import pytest

from rl_agent.simulation.loop import Loop, VirtualEpisode
from rl_agent.simulation.speeds import EngineSpeed
from rl_agent.simulation.work import Work
from rl_agent.simulation.world import RentedPool
from tests.unit.simulation.scenarios import scenario


def ends_of(speed: EngineSpeed, lengths: tuple[int, ...]) -> dict[str, float]:
    """Return when each of some requests, which begin together, ends."""
    ended: dict[str, float] = {}
    world = RentedPool(
        rules=scenario().rules,
        chunk=1,
        on_ended=lambda request: ended.update({request.request_id.name: world.now}),
    )
    world.join("a", speed, weight_version=0)
    work = Work(4, 1, 1, 100, 1000, 0.5, 1, 0)
    loop = Loop(work, scenario().trainer, 0, can_continue=True)
    loop.world, loop.submitted = world, 1
    for number, length in enumerate(lengths):
        loop._ask(VirtualEpisode(1, number, 0, 0, [length], [0.0]))
    world.run(1000.0)
    return ended


def test_an_engine_needs_the_steps_of_its_longest_request():
    ended = ends_of(EngineSpeed(0.01, 0.001, 0.0, 0.0, 0.0, 1.0, 0.0, capacity=8), (100, 300))
    assert ended == pytest.approx({"1/0/0/0": 100 * 0.012, "1/1/0/0": 100 * 0.012 + 200 * 0.011}, abs=0.01)


@pytest.mark.parametrize("lengths", [(400,) * 4, (399, 399, 399, 400)])
def test_growing_contexts_slow_an_engine_even_at_equal_lengths(lengths):
    ended = ends_of(EngineSpeed(0.01, 0.001, 1e-4, 0.0, 0.0, 1.0, 0.0, capacity=8), lengths)

    steps = [0.01 + 4 * 0.001 + 4 * (1 + step + 0.5) * 1e-4 for step in range(400)]
    assert max(ended.values()) == pytest.approx(sum(steps), rel=0.005)


def test_a_step_that_prompts_join_is_longer_however_many_they_are():
    speed = EngineSpeed(0.01, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, capacity=8, join_s=0.5)
    together, in_turns = ends_of(speed, (100, 100)), ends_of(replace(speed, capacity=1), (100, 100))
    assert together == pytest.approx({"1/0/0/0": 1.5, "1/1/0/0": 1.5}, abs=0.01)
    assert in_turns == pytest.approx({"1/0/0/0": 1.5, "1/1/0/0": 3.0}, abs=0.01)


def test_a_later_turn_is_read_from_where_the_earlier_one_ended():
    ended: dict[str, float] = {}
    world = RentedPool(
        rules=scenario().rules,
        chunk=1,
        on_ended=lambda request: (ended.update({request.request_id.name: world.now}), loop.ended(request)),
    )
    world.join("a", EngineSpeed(0.01, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, capacity=8), weight_version=0)
    work = Work(4, 1, 7, 100, 1000, 0.5, 1, 0, turns=2, observation_tokens=5)
    loop = Loop(work, scenario().trainer, 0, can_continue=True)
    loop.world, loop.submitted = world, 1
    loop._ask(VirtualEpisode(1, 0, 0, 0, [100, 100], [30.0, 0.0]))
    world.run(1000.0)
    # A second for each token that is read: the prompt of 7 first, then the 5 that came.
    assert ended == pytest.approx({"1/0/0/0": 7 + 1.0, "1/0/0/1": 8 + 30 + 5 + 1.0}, abs=0.01)
