"""Metrics are of the whole mini-batch, however it was cut."""

import statistics

import pytest
import torch

from tests.integration.trainer.ranks import compute
from tests.integration.trainer.samples import random_groups, tiny_policy
from tests.integration.trainer.step.test_update_step import score


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
