"""Packed attention against one dense matrix of scores, for sequences that share calls or take blocks."""

import pytest
import torch
from torch import Tensor

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


def dense(query: Tensor, key: Tensor, value: Tensor, **extra) -> Tensor:
    """By the definition."""
    key, value = (tensor.repeat_interleave(HEADS // KEY_HEADS, dim=1) for tensor in (key, value))
    scores = query @ key.transpose(2, 3) * extra.get("scaling", SIZE**-0.5)
    if cap := extra.get("softcap"):
        scores = cap * torch.tanh(scores / cap)
    place = torch.arange(sum(LENGTHS))
    sequence = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    distance = place[:, None] - place
    is_seen = (distance >= 0) & (sequence[:, None] == sequence)
    is_seen &= distance < extra.get("sliding_window", 10_000)
    weights = scores.masked_fill(~is_seen, float("-inf")).exp()
    total = weights.sum(-1, keepdim=True)
    if (sinks := extra.get("s_aux")) is not None:
        total = total + sinks.exp()[:, None, None]
    return ((weights / total) @ value).transpose(1, 2)


def as_on_a_gpu(query: Tensor, key: Tensor, value: Tensor, **extra) -> Tensor:
    return attention._in_rows(query, key, value, ENDS, extra.get("scaling", SIZE**-0.5))


def packed(*parts: Tensor, **extra) -> Tensor:
    options = {"boundaries": ENDS, "max_length": max(LENGTHS)} | extra
    return packed_attention(torch.nn.Identity(), *parts, None, **options)[0]


def test_sequences_of_about_one_length_share_a_call():
    calls, _ = attention._rows(tuple(ENDS.tolist()), torch.device("cpu"))
    assert [shape for shape, *_ in calls] == [(2, 150), (2, 70), (2, 1)]


WAYS = [(packed, extra) for extra in EXTRAS] + [(as_on_a_gpu, "nothing"), (as_on_a_gpu, "its own scale")]


@pytest.mark.parametrize(("attend", "extra"), WAYS)
def test_output_and_gradients_are_those_of_the_definition(attend, extra, monkeypatch):
    monkeypatch.setattr(attention, "_BLOCK_SCORES", 20 * HEADS * max(LENGTHS))
    found = []
    for compute in (attend, dense):
        torch.manual_seed(0)
        heads = (HEADS, KEY_HEADS, KEY_HEADS)
        leaves = [torch.randn(1, h, sum(LENGTHS), SIZE, dtype=torch.float64).requires_grad_() for h in heads]
        output = compute(*leaves, **EXTRAS[extra])
        output.square().sum().backward()
        found.append([output.detach(), *(leaf.grad for leaf in leaves)])
    for mine, expected in zip(*found, strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-5)
