"""Metrics are of the whole mini-batch, however it was cut."""

import statistics

import numpy as np
import pytest
import torch

from tests.integration.trainer.ranks import (
    compute,
)
from tests.integration.trainer.samples import random_groups, tiny_policy


def score(policy, segment) -> tuple[torch.Tensor, torch.Tensor]:
    token_ids = torch.as_tensor(segment.token_ids).long()
    log_p = policy.model(input_ids=token_ids[None], use_cache=False).logits[0].log_softmax(-1)
    chosen = torch.as_tensor(np.flatnonzero(segment.is_response))
    entropies = -(log_p.exp() * log_p).sum(-1)
    return log_p[chosen - 1, token_ids[chosen]], entropies[chosen - 1]


def test_metrics_are_of_the_whole_mini_batch(alone):
    _, metrics = compute(alone, "streamed", proximal="behaviour", correction="none")
    samples = [sample for group in random_groups(6) for sample in group.samples]
    policy = tiny_policy(seed=0)
    policy.model.set_attn_implementation("sdpa")
    with torch.no_grad():
        scored = [(score(policy, s), s) for sample in samples for s in sample.segments]
    ratios = torch.cat([(lp - torch.tensor(s.behaviour[s.is_response])).exp() for (lp, _), s in scored])
    entropies = torch.cat([entropy for (_, entropy), _ in scored])
    assert metrics["entropy"] == pytest.approx(entropies.mean().item(), rel=1e-5)
    assert metrics["ratio"] == pytest.approx(ratios.mean().item(), rel=1e-5)
    assert metrics["ratio_max"] == pytest.approx(ratios.max().item(), rel=1e-5)
    assert 0 < metrics["clip_fraction"] < 1
    assert metrics["reward"] == pytest.approx(statistics.fmean(s.reward for s in samples))
    assert metrics["episodes"] == len(samples) == 24
    assert metrics["response_length_max"] == max(s.response_tokens for s in samples)
