"""Which sequences share a micro-batch, and how an episode becomes sequences."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.errors import ConfigError
from rl_agent.trainer.data.batch import Row, pack
from rl_agent.trainer.data.packing import plan_full_micro_batch, plan_micro_batches
from rl_agent.trainer.data.samples import Versions, make_group
from rl_agent.types import EpisodeKey, Generation, Status
from tests.unit.rollout.trajectories_made import make_step, make_trajectory

CPU = torch.device("cpu")


@given(
    st.lists(st.integers(1, 300), max_size=40),
    st.integers(1, 4),
    st.integers(50, 400),
)
def test_a_plan_holds_what_it_promises(lengths, ranks, budget):
    plan = plan_micro_batches(lengths, token_budget=budget, ranks=ranks, attention_crossover=1000)
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
    plan, taken = plan_full_micro_batch(lengths, token_budget=budget, ranks=ranks, attention_crossover=1000)
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
            _, taken = plan_full_micro_batch(
                waiting, token_budget=budget, ranks=ranks, attention_crossover=50_000
            )
            if not taken:
                break
            count, waiting = count + ranks, waiting[taken:]
    assert (total - sum(waiting)) / (count * budget) > 0.9


def test_long_tailed_lengths_are_balanced_across_ranks_and_rows():
    lengths = [int(100 * 1.08**i) for i in range(64)]
    plan = plan_micro_batches(lengths, token_budget=16_384, ranks=4, attention_crossover=50_000)
    totals = [sum(lengths[i] for indices in of_rank for i in indices) for of_rank in plan]
    assert max(totals) < 1.05 * min(totals)
    full = sum(lengths) / (16_384 * 4 * len(plan[0]))
    assert full > 0.75


def generation(*token_ids: int) -> Generation:
    return Generation(token_ids, tuple(-0.1 * t for t in token_ids), "", "stop", 3, 4)


def steps_of(*turns: tuple[tuple[int, ...], tuple[int, ...], bool]):
    return tuple(
        dataclasses.replace(
            make_step(), prompt_token_ids=prompt, generation=generation(*said), context_reset=is_reset
        )
        for prompt, said, is_reset in turns
    )


def sibling(attempt: int, **changes):
    episode = make_trajectory(**changes)
    return dataclasses.replace(episode, key=EpisodeKey("task", 1, attempt))


def test_a_growing_context_is_one_segment_that_trains_what_the_policy_said():
    steps = steps_of(((1, 2), (3, 4), False), ((5,), (6,), False))
    (sample,) = make_group([sibling(0, steps=steps)]).samples
    (segment,) = sample.segments
    assert segment.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert segment.is_response.tolist() == [False, False, True, True, False, True]
    assert segment.behaviour.tolist() == pytest.approx([0, 0, -0.3, -0.4, 0, -0.6])
    assert sample.response_tokens == 3
    assert sample.versions == Versions(0, 0)


def test_a_context_that_was_sent_again_begins_a_segment():
    steps = steps_of(((1, 2), (3,), True), ((1, 2, 9, 5), (6, 7), True))
    (sample,) = make_group([sibling(0, steps=steps)]).samples
    assert [segment.token_ids.tolist() for segment in sample.segments] == [[1, 2, 3], [1, 2, 9, 5, 6, 7]]
    assert [segment.is_response.sum() for segment in sample.segments] == [1, 2]


def test_siblings_without_a_reward_are_left_out_and_the_rest_keep_their_order():
    group = make_group(
        [sibling(2, reward=0.5), sibling(0, reward=1.0), sibling(1, status=Status.FAILED, steps=())]
    )
    assert group.key == "1/task:1"
    assert [sample.reward for sample in group.samples] == [1.0, 0.5]


def test_an_episode_with_images_is_refused():
    step = make_step(images=("/picture.png",))
    with pytest.raises(ConfigError, match="images"):
        make_group([sibling(0, steps=(step,))])


def test_a_packed_batch_points_each_response_token_at_the_token_before_it():
    steps = steps_of(((1, 2), (3, 4), False), ((5,), (6,), False))
    (sample,) = make_group([sibling(0, steps=steps)]).samples
    rows = [Row(sample.segments[0], 0.5, 3, 0), Row(sample.segments[0], -2.0, 3, 7)]
    batch = pack(rows, CPU)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5, 6] * 2]
    assert batch.position_ids.tolist() == [[*range(6), *range(6)]]
    assert batch.boundaries.tolist() == [0, 6, 12]
    assert batch.positions.tolist() == [1, 2, 4, 7, 8, 10]
    assert batch.input_ids[0, batch.positions + 1].tolist() == batch.targets.tolist() == [3, 4, 6] * 2
    assert batch.advantages.tolist() == [0.5] * 3 + [-2.0] * 3
    assert batch.sample.tolist() == [0] * 3 + [7] * 3
    assert np.allclose(batch.behaviour, [-0.3, -0.4, -0.6] * 2)


def test_a_rank_without_rows_gets_a_batch_that_teaches_nothing():
    batch = pack([], CPU)
    assert batch.input_ids.shape == (1, 1)
    assert batch.boundaries.tolist() == [0, 1]
    assert len(batch.targets) == len(batch.advantages) == len(batch.positions) == 0
