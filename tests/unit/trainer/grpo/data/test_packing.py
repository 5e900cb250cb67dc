"""Which sequences share a micro-batch, and how an episode becomes sequences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.trainer.grpo.data.packing import ATTENTION_CROSSOVER, plan_full_micro_batch, plan_micro_batches


@given(
    st.lists(st.integers(1, 300), max_size=40),
    st.integers(1, 4),
    st.integers(50, 400),
)
def test_a_plan_holds_what_it_promises(lengths, ranks, budget):
    plan = plan_micro_batches(lengths, token_budget=budget, ranks=ranks)
    micro_batches = [indices for of_rank in plan for indices in of_rank]
    assert sorted(i for indices in micro_batches for i in indices) == list(range(len(lengths)))
    assert {len(of_rank) for of_rank in plan} == {len(plan[0])}
    assert len(plan) == ranks
    for indices in micro_batches:
        assert sum(lengths[i] for i in indices) <= budget or len(indices) == 1


@given(
    st.lists(st.integers(1, 300), max_size=40),
    st.integers(1, 4),
    st.integers(50, 400),
)
def test_a_full_micro_batch_is_planned_as_soon_as_there_is_enough_for_one(lengths, ranks, budget):
    plan, taken = plan_full_micro_batch(lengths, token_budget=budget, ranks=ranks)
    assert (taken > 0) == (sum(min(length, budget) for length in lengths) >= ranks * budget)
    assert sorted(i for ((*indices,),) in plan for i in indices) == list(range(taken))
    for ((*indices,),) in plan:
        assert sum(lengths[i] for i in indices) <= budget or len(indices) == 1


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_groups_that_come_one_by_one_fill_their_micro_batches(ranks):
    budget, count, total, waiting = 16_384, 0, 0, []
    generator = np.random.default_rng(0)
    for _ in range(192):
        group = [int(n) for n in np.minimum(40 + generator.geometric(1 / 800, 8), 4096)]
        total += sum(group)
        waiting += group
        while True:
            _, taken = plan_full_micro_batch(waiting, token_budget=budget, ranks=ranks)
            if not taken:
                break
            count, waiting = count + ranks, waiting[taken:]
    assert (total - sum(waiting)) / (count * budget) > 0.9


def test_long_tailed_lengths_are_balanced_across_ranks_and_rows():
    lengths = [int(100 * 1.08**i) for i in range(64)]
    plan = plan_micro_batches(lengths, token_budget=16_384, ranks=4)
    costs = [length * (1 + length / ATTENTION_CROSSOVER) for length in lengths]
    totals = [sum(costs[i] for indices in of_rank for i in indices) for of_rank in plan]
    assert max(totals) < 1.05 * min(totals)
    full = sum(lengths) / (16_384 * 4 * len(plan[0]))
    assert full > 0.75
