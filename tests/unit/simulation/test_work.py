"""The work of a simulated run: lengths, steps and machines are drawn from a seed."""

import itertools

import pytest

from rl_agent.simulation.work import Work, drawn_trace, mean_machines
from rl_agent.trainer.grpo.data.order import ArrivalOrder
from tests.unit.simulation.scenarios import ALWAYS_TWO, scenario


@pytest.mark.parametrize(("prompts", "steps"), [(8, 3), (8, 8), (7, 4), (3, 5), (10, 1)])
def test_steps_that_take_any_groups_end_with_those_of_the_trainer(prompts, steps):
    work = scenario(ALWAYS_TWO, f"prompts={prompts}", f"mini_batches={steps}").work
    arrival = ArrivalOrder(prompts, steps)
    ends = list(itertools.accumulate(arrival.size(step) for step in range(min(steps, prompts))))
    assert [groups for groups in range(1, prompts + 1) if work.ends_step(groups)] == ends


def test_every_sample_is_dealt_to_one_step_and_steps_are_alike():
    work = scenario(ALWAYS_TWO, "mini_batches=3").work
    steps = work.steps_of(1)
    assert [len(of) for of in steps] == [work.group_size] * work.prompts
    assert sorted(sum(of.count(step) for of in steps) for step in range(3)) == [10, 11, 11]
    assert work.steps_of(1) == steps != work.steps_of(2)


def test_drawn_lengths_have_the_mean_that_was_asked_for_and_a_tail():
    work = Work(512, 8, 512, 5000, 14_336, 0.8, 1, seed=4)
    lengths = work.lengths(1)
    assert sum(lengths) / len(lengths) == pytest.approx(5000, rel=0.03)
    assert max(lengths) == 14_336 and min(lengths) >= 1
    assert lengths == work.lengths(1) != work.lengths(2)


def test_drawn_pauses_have_the_mean_that_was_asked_for_and_a_tail():
    work = Work(512, 8, 512, 500, 4096, 0.8, 1, seed=4, turns=5, environment_s=3.0)
    pauses = work.pauses(1)
    assert len(pauses) == len(work.lengths(1)) == 512 * 8 * 5
    assert sum(pauses) / len(pauses) == pytest.approx(3.0, rel=0.03)
    assert max(pauses) > 20 and pauses == work.pauses(1) != work.pauses(2)


def test_a_drawn_trace_has_as_many_machines_as_its_times_say():
    trace = drawn_trace(hours=500, most=8, up_s=3 * 3600, down_s=3600, seed=1)
    assert mean_machines(trace, 500 * 3600) == pytest.approx(6.0, rel=0.05)
    count = 0
    for change in trace:
        count += 1 if change.is_join else -1
        assert 0 <= count <= 8
