"""A shuffled order fixes the samples of each step, whenever they arrive."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.trainer.grpo.data.intake import Intake
from rl_agent.trainer.grpo.data.order import ArrivalOrder, ShuffledOrder
from rl_agent.trainer.grpo.data.staleness import AdmissionRule
from tests.integration.trainer.settings import loss_settings
from tests.unit.trainer.grpo.data.test_intake import make_group

GROUPS, STEPS = 12, 5
SIZE = 4


def shuffled(*, seed: str = "3/1", groups=range(GROUPS)) -> ShuffledOrder:
    return ShuffledOrder(
        {f"g{n}": [f"g{n}:{i}" for i in range(SIZE)] for n in groups}, steps=STEPS, seed=seed
    )


def samples_by_step(order: ShuffledOrder) -> list[set[str]]:
    return [{sample for of in order.part(step).values() for sample in of} for step in range(STEPS)]


def arriving(group: int, **changes):
    return make_group(f"g{group}", rewards=(0.0, 1.0, 0.5, 0.25), **changes)


def begun(order: ShuffledOrder, *, drop: bool = False) -> Intake:
    return Intake(AdmissionRule(0, False), order, loss_settings(drop_uninformative=drop))


def trained(held: Intake, version: int = 0) -> set[str] | None:
    """Keys of the samples of a step; None if more have to arrive for it."""
    while not held.is_full:
        if held.next_group(version) is None:
            return None
    return {sample.key for group in held.step_done() for sample in group.trained}


@given(groups=st.integers(1, 300), steps=st.integers(1, 300))
def test_groups_that_come_are_divided_among_all_steps_as_evenly_as_can_be(groups, steps):
    arrival, count = ArrivalOrder(groups, steps), min(steps, groups)
    sizes = [arrival.size(step) for step in range(count)]
    assert sum(sizes) == groups and max(sizes) - min(sizes) <= 1 and min(sizes) > 0
    assert arrival.size(count) == sizes[0]  # more than were counted on


def test_an_iteration_resumed_in_its_middle_makes_the_remaining_steps():
    held, sizes = Intake(AdmissionRule(0, False), ArrivalOrder(11, 4), loss_settings()), []
    held.restore([f"g{n}" for n in range(5)], [], steps=2)
    held.offer(arriving(n) for n in range(11))
    while (keys := trained(held)) is not None:
        sizes.append(len(keys) // SIZE)
    assert sizes == [3, 3]


def test_every_sample_is_in_one_step_and_steps_are_of_equal_size():
    order = shuffled()
    parts = samples_by_step(order)
    assert Counter(sample for part in parts for sample in part) == {
        f"g{n}:{i}": 1 for n in range(GROUPS) for i in range(SIZE)
    }
    assert {len(part) for part in parts} == {9, 10}
    assert [order.part(n) for n in range(STEPS)] == [shuffled().part(n) for n in range(STEPS)]
    assert order.part(0) != shuffled(seed="3/2").part(0)


@pytest.mark.parametrize("seed", range(4))
def test_a_steps_samples_do_not_depend_on_the_order_of_arrival(seed):
    held, steps = begun(shuffled()), []
    for group in random.Random(seed).sample(range(GROUPS), GROUPS):
        held.offer([arriving(group)])
        while len(steps) < STEPS and (keys := trained(held)) is not None:
            steps.append(keys)
    assert steps == samples_by_step(shuffled())
    assert held.consumed == {f"g{n}" for n in range(GROUPS)} and not held.buffered


def test_a_step_is_given_what_is_there_and_waits_for_its_own_groups_only():
    held, order = begun(shuffled()), shuffled()
    own, others = set(order.part(0)), {f"g{n}" for n in range(GROUPS)} - set(order.part(0))
    assert others, "the example has a group that the first step does not need"
    first, *rest = sorted(own)
    held.offer([arriving(int(first[1:]))])
    assert held.next_group(0).key == first and not held.is_full  # computed before the others are there
    held.offer([arriving(int(key[1:])) for key in rest])
    assert trained(held) == samples_by_step(order)[0]


def test_groups_that_never_come_or_are_turned_away_leave_their_steps_short():
    held = begun(shuffled(), drop=True)
    held.offer([arriving(n) for n in range(GROUPS) if n not in (2, 7)])
    held.offer([make_group("g7", rewards=(1.0,) * SIZE), make_group("stranger")])
    held.end()
    steps = []
    while held.next_group(0) is not None:
        while held.next_group(0) is not None:
            pass
        steps.append({sample.key for group in held.step_done() for sample in group.trained})
    samples = set().union(*steps)
    assert samples == {f"g{n}:{i}" for n in range(GROUPS) if n not in (2, 7) for i in range(SIZE)}
    assert sum(map(len, steps)) == len(samples) and not held.buffered
    assert {"g7", "stranger"} <= held.consumed


def test_a_step_none_of_whose_samples_has_a_reward_is_passed_over():
    held = begun(ShuffledOrder({"g0": ["g0:0", "g0:1"], "g1": ["g1:0", "g1:1"]}, steps=4, seed="0"))
    held.offer([make_group("g0", rewards=(1.0,)), make_group("g1", rewards=(0.0, 1.0))])  # g0:1 has failed
    held.end()
    steps = []
    while held.next_group(0) is not None:
        steps.append([sample.key for group in held.step_done() for sample in group.trained])
    assert sorted(steps) == [["g0:0"], ["g1:0"], ["g1:1"]] and held.steps == 4


def test_an_interrupted_iteration_resumes_and_trains_on_nothing_twice():
    held, expected = begun(shuffled()), samples_by_step(shuffled())
    held.offer([arriving(n) for n in range(GROUPS)])
    assert [trained(held) for _ in range(2)] == expected[:2]
    assert held.next_group(0) is not None
    held.step_abandoned()
    again = begun(shuffled())
    again.restore(held.consumed, held.buffered, held.steps)
    again.offer([arriving(n) for n in range(GROUPS)])  # the source begins anew
    assert [trained(again) for _ in range(2, STEPS)] == expected[2:]
    again.forget()
    assert again.steps == 0
