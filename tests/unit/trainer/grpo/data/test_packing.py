"""Sequences share a micro-batch, and an episode becomes sequences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.trainer.grpo.data.images import PlacedImage
from rl_agent.trainer.grpo.data.packing import (
    ATTENTION_CROSSOVER,
    KEYS_PER_TOKEN,
    budget_tokens,
    plan_full_micro_batch,
    plan_micro_batches,
)
from rl_agent.trainer.grpo.data.prefixes import chain_apart, chain_of, shared_prefixes


def groups_of(prompts: list[int], answers: list[list[int]], *, system: int = 0) -> list[np.ndarray]:
    """Sequences of groups: a prompt of each, after what all have in common, and its siblings' answers."""
    generator = np.random.default_rng(0)
    common = generator.integers(0, 1000, system)
    sequences = []
    for prompt, lengths in zip(prompts, answers, strict=False):
        begin = np.concatenate([common, generator.integers(0, 1000, prompt)])
        sequences += [np.concatenate([begin, generator.integers(0, 1000, n)]) for n in lengths]
    return [tokens.astype(np.int32) for tokens in sequences]


def computed(sequences: list[np.ndarray], micro_batches: list[list[int]]) -> int:
    """Tokens that these micro-batches compute."""
    each = [[sequences[i] for i in indices] for indices in micro_batches]
    return sum(sum(map(len, own)) - sum(shared_prefixes(own)) for own in each)


GROUPS = st.builds(
    groups_of,
    st.lists(st.integers(1, 120), min_size=8, max_size=8),
    st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=6), max_size=8),
    system=st.sampled_from([0, 40]),
)


@given(GROUPS, st.integers(1, 4), st.integers(50, 400))
def test_a_plan_of_shared_prefixes_holds_what_it_promises(sequences, ranks, budget):
    lengths = [len(tokens) for tokens in sequences]
    plan = plan_micro_batches(lengths, chain_of(sequences), token_budget=budget, ranks=ranks)
    micro_batches = [indices for of_rank in plan for indices in of_rank]
    assert sorted(i for indices in micro_batches for i in indices) == list(range(len(sequences)))
    assert len(plan) == ranks
    assert {len(of_rank) for of_rank in plan} == {len(plan[0])}
    for indices in micro_batches:
        own = [sequences[i] for i in indices]
        assert budget_tokens([len(tokens) for tokens in own], chain_of(own)) <= budget or len(own) == 1


def test_siblings_stay_together_and_ranks_are_balanced():
    generator = np.random.default_rng(1)
    answers = generator.integers(20, 200, (16, 8)).tolist()
    sequences = groups_of([600] * 16, answers)
    lengths = [len(tokens) for tokens in sequences]
    plan = plan_micro_batches(lengths, chain_of(sequences), token_budget=4096, ranks=2)
    least = 16 * 600 + sum(map(sum, answers))
    assert sum(lengths) > 3 * least
    of_ranks = [computed(sequences, of_rank) for of_rank in plan]
    assert least - 8 * 16 < sum(of_ranks) < 1.05 * least  # random answers may begin alike by chance
    assert max(of_ranks) < 1.1 * min(of_ranks)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_one_group_is_divided_among_ranks_though_they_copy_its_prompt(ranks):
    sequences = groups_of([100], [[400] * 8])
    plan = plan_micro_batches([500] * 8, chain_of(sequences), token_budget=16_384, ranks=ranks)
    assert [len(indices) for (indices,) in plan] == [8 // ranks] * ranks


def test_copied_keys_count_in_the_budget():
    (prompt,) = groups_of([800], [[0]])
    sequences = [np.append(prompt, np.full(10, answer, np.int32)) for answer in range(40)]
    chain = chain_of(sequences)
    assert budget_tokens([810] * 40, chain) == 800 + 400 + 39 * 800 // KEYS_PER_TOKEN
    plan = plan_micro_batches([810] * 40, chain, token_budget=4096, ranks=1)
    assert len(plan[0]) == 2


def apart(lengths: list[int], **limits):
    return plan_micro_batches(lengths, chain_apart(len(lengths)), **limits)


@given(st.lists(st.integers(1, 300), max_size=40), st.integers(1, 4), st.integers(50, 400))
def test_a_full_micro_batch_is_planned_as_soon_as_there_is_enough_for_one(lengths, ranks, budget):
    chain = chain_apart(len(lengths))
    plan, taken = plan_full_micro_batch(lengths, chain, token_budget=budget, ranks=ranks)
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
            chain = chain_apart(len(waiting))
            _, taken = plan_full_micro_batch(waiting, chain, token_budget=budget, ranks=ranks)
            if not taken:
                break
            count, waiting = count + ranks, waiting[taken:]
    assert (total - sum(waiting)) / (count * budget) > 0.9


@pytest.mark.parametrize("ranks", [1, 4])
def test_siblings_that_come_one_by_one_fill_their_micro_batches(ranks):
    generator = np.random.default_rng(0)
    answers = [[int(n) for n in np.minimum(40 + generator.geometric(1 / 300, 8), 2048)] for _ in range(96)]
    every = groups_of([500] * 96, answers)
    count, total, waiting = 0, 0, []
    for start in range(0, len(every), 8):
        waiting += every[start : start + 8]
        while True:
            lengths, chain = [len(tokens) for tokens in waiting], chain_of(waiting)
            plan, taken = plan_full_micro_batch(lengths, chain, token_budget=16_384, ranks=ranks)
            if not taken:
                break
            for ((*indices,),) in plan:
                own = [waiting[i] for i in indices]
                total += budget_tokens([len(tokens) for tokens in own], chain_of(own))
            count, waiting = count + ranks, waiting[taken:]
    assert total / (count * 16_384) > 0.9


def test_long_tailed_lengths_are_balanced_across_ranks_and_rows():
    lengths = [int(100 * 1.08**i) for i in range(64)]
    plan = apart(lengths, token_budget=16_384, ranks=4)
    costs = [length * (1 + length / ATTENTION_CROSSOVER) for length in lengths]
    totals = [sum(costs[i] for indices in of_rank for i in indices) for of_rank in plan]
    assert max(totals) < 1.05 * min(totals)
    full = sum(lengths) / (16_384 * 4 * len(plan[0]))
    assert full > 0.75


def test_ranks_have_equal_shares_of_what_a_tower_computes():
    image = PlacedImage("picture.png", 10, 80)
    for image_cost, of_rank in ((0.0, [0, 2]), (1.0, [0, 3])):
        limits = {"token_budget": 500, "ranks": 2, "image_cost": image_cost}
        plan = plan_micro_batches([100] * 4, chain_apart(4), [(image,), ()] * 2, **limits)
        assert [of_rank] in plan


def test_an_image_in_a_prefix_that_is_shared_costs_once():
    sequences = groups_of([100] + [98] * 10, [[20] * 4] + [[0]] * 10)
    images = [(PlacedImage("picture.png", 10, 80),)] * 4 + [()] * 10
    limits = {"token_budget": 5000, "ranks": 2, "image_cost": 10.0}
    plan = plan_micro_batches([*map(len, sequences)], chain_of(sequences), images, **limits)
    assert sorted(sorted(indices) for (indices,) in plan) == [[0, 1, 2, 3], [*range(4, 14)]]
