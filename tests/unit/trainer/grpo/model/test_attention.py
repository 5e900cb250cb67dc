"""Packed attention against one dense matrix of scores, for sequences that share calls or take blocks."""

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_agent.trainer.grpo.data.batch import PackedBatch, Row, pack
from rl_agent.trainer.grpo.data.samples import Segment
from rl_agent.trainer.grpo.model import attention
from rl_agent.trainer.grpo.model.attention import packed_attention

LENGTHS = (150, 1, 70, 141, 1, 65)
ENDS = torch.tensor([0, *LENGTHS]).cumsum(0).int()
HEADS, KEY_HEADS, SIZE = 4, 2, 8
EXTRAS = {
    "nothing": {},
    "a window": {"sliding_window": 9},
    "a window longer than a block": {"sliding_window": 100},
    "a window longer than every sequence": {"sliding_window": 1000},
    "its own scale": {"scaling": 1.5},
    "capped scores": {"softcap": 2.0},
    "sinks": {"s_aux": torch.linspace(-2, 2, HEADS)},
    "all of it": {"sliding_window": 9, "scaling": 1.5, "softcap": 2.0, "s_aux": torch.linspace(-2, 2, HEADS)},
}


def batch_of(sequences: list[np.ndarray], *, shares: bool) -> PackedBatch:
    rows = []
    for tokens in sequences:
        segment = Segment(tokens.astype(np.int32), np.zeros(len(tokens), bool), np.zeros(len(tokens)))
        rows.append(Row(segment, 0.0, 0, 0))
    return pack(rows, torch.device("cpu"), shares=shares)


def tree() -> list[np.ndarray]:
    """Siblings, one with a branch of its own, two that are equal, and strangers."""
    generator = np.random.default_rng(0)
    begin, *ends = (generator.integers(0, 1000, length) for length in (100, 50, 3, 41, 70, 1))
    siblings = [np.concatenate([begin, end]) for end in ends[:3]]
    return [*siblings, np.concatenate([siblings[2][:120], ends[1]]), siblings[1], *ends[3:]]


STRANGERS = [np.random.default_rng(index).integers(0, 1000, length) for index, length in enumerate(LENGTHS)]
BATCHES = {"apart": batch_of(STRANGERS, shares=False), "a tree": batch_of(tree(), shares=True)}


def dense(batch: PackedBatch, query: Tensor, key: Tensor, value: Tensor, **extra) -> Tensor:
    """Compute attention by the definition."""
    key, value = (tensor.repeat_interleave(HEADS // KEY_HEADS, dim=1) for tensor in (key, value))
    scores = query @ key.transpose(2, 3) * extra.get("scaling", SIZE**-0.5)
    if cap := extra.get("softcap"):
        scores = cap * torch.tanh(scores / cap)
    positions = batch.position_ids[0]
    places = torch.arange(len(positions)) if batch.key_places is None else batch.key_places
    is_of_sequence = torch.zeros(len(positions), len(positions), dtype=torch.bool)
    for own, path in zip(batch.boundaries.unfold(0, 2, 1), batch.key_boundaries.unfold(0, 2, 1), strict=True):
        is_of_sequence[slice(*own), places[slice(*path)]] = True
    distance = positions[:, None] - positions
    is_seen = is_of_sequence & (distance >= 0) & (distance < extra.get("sliding_window", 10_000))
    weights = scores.masked_fill(~is_seen, float("-inf")).exp()
    total = weights.sum(-1, keepdim=True)
    if (sinks := extra.get("s_aux")) is not None:
        total = total + sinks.exp()[:, None, None]
    return ((weights / total) @ value).transpose(1, 2)


def as_on_a_gpu(batch: PackedBatch, query: Tensor, key: Tensor, value: Tensor, **extra) -> Tensor:
    scale, places = extra.get("scaling", SIZE**-0.5), batch.key_places
    if places is None:
        return attention._in_rows(query, key, value, batch.boundaries, scale)
    key, value = key.index_select(2, places), value.index_select(2, places)
    ends = batch.boundaries, batch.key_boundaries
    return attention._in_whole_rows(query, key, value, *ends, places, scale)


def packed(batch: PackedBatch, *parts: Tensor, **extra) -> Tensor:
    names = "boundaries", "key_boundaries", "key_places", "max_length"
    options = {name: getattr(batch, name) for name in names} | extra
    return packed_attention(torch.nn.Identity(), *parts, None, **options)[0]


def test_sequences_of_about_one_length_share_a_call():
    calls, _ = attention._rows(tuple(ENDS.tolist()), torch.device("cpu"))
    assert [shape for shape, *_ in calls] == [(2, 150), (2, 70), (2, 1)]


WAYS = [(packed, extra) for extra in EXTRAS] + [(as_on_a_gpu, "nothing"), (as_on_a_gpu, "its own scale")]


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(("attend", "extra"), WAYS)
def test_output_and_gradients_are_those_of_the_definition(attend, extra, batch, monkeypatch):
    monkeypatch.setattr(attention, "_BLOCK_SCORES", 20 * HEADS * max(LENGTHS))
    results = []
    for compute in (attend, dense):
        torch.manual_seed(0)
        heads, tokens = (HEADS, KEY_HEADS, KEY_HEADS), batch.input_ids.shape[1]
        leaves = [torch.randn(1, h, tokens, SIZE, dtype=torch.float64).requires_grad_() for h in heads]
        output = compute(batch, *leaves, **EXTRAS[extra])
        output.square().sum().backward()
        results.append([output.detach(), *(leaf.grad for leaf in leaves)])
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-5)
