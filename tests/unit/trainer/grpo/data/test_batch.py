"""A packed batch holds sequences end to end, and scores each response token from the one before it."""

import numpy as np
import torch

from rl_agent.trainer.grpo.data.batch import Row, pack
from rl_agent.trainer.grpo.data.samples import make_group
from tests.unit.trainer.grpo.data.test_samples import sibling, steps_of

CPU = torch.device("cpu")


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


def test_a_prefix_that_rows_share_is_there_once():
    contexts = ((1, 2, 3), (4, 5)), ((1, 2, 3), (6,)), ((9,), (8,)), ((1, 2, 3), (4, 7))
    steps = [steps_of((*turn, False)) for turn in contexts]
    samples = make_group([sibling(i, steps=turns) for i, turns in enumerate(steps)]).samples
    rows = [Row(sample.segments[0], 0.0, 1, i) for i, sample in enumerate(samples)]
    batch = pack(rows, CPU, shares=True)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5, 7, 6, 9, 8]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 4, 3, 0, 1]]
    assert batch.boundaries.tolist() == [0, 5, 6, 7, 9]
    assert batch.key_places.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2, 6, 7, 8]
    assert batch.key_boundaries.tolist() == [0, 5, 10, 14, 16]
    assert (batch.max_length, batch.sequences) == (5, 4)
    apart = pack(rows, CPU)
    assert apart.key_places is None
    assert batch.targets.tolist() == apart.targets.tolist() == [4, 5, 6, 8, 4, 7]
    assert batch.positions.tolist() == [2, 3, 2, 7, 2, 3]
    assert batch.sequence.tolist() == apart.sequence.tolist()


def test_a_rank_without_rows_gets_a_batch_that_teaches_nothing():
    batch = pack([], CPU)
    assert batch.input_ids.shape == (1, 1)
    assert batch.boundaries.tolist() == [0, 1]
    assert len(batch.targets) == len(batch.advantages) == len(batch.positions) == 0
