"""The weights that an iteration began with: kept, scored with, given back bit for bit."""

import pytest
import torch
from torch import nn

from rl_agent.trainer.grpo.step.start_weights import StartWeights


class Summing(nn.Module):
    """Scores a batch by its weights; one of them is not trained."""

    def __init__(self):
        super().__init__()
        self.trained = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.frozen = nn.Parameter(torch.tensor([100.0]), requires_grad=False)

    def forward(self, batch):
        return (self.trained.sum() + self.frozen) * batch, None


@pytest.fixture
def policy():
    return Summing()


@pytest.fixture
def start(policy):
    """Weights that were kept before a step tripled those of the policy."""
    start = StartWeights(policy)
    start.keep()
    with torch.no_grad():
        policy.trained.mul_(3)
    return start


def test_until_they_are_kept_the_policy_has_them_itself(policy):
    start = StartWeights(policy)
    assert not start.is_kept and start.parts() == {}
    assert start.logprobs([2.0]) == [206.0]


def test_batches_are_scored_under_kept_weights_and_the_policy_is_unchanged(start, policy):
    assert start.is_kept and [*start.parts()] == ["trained"]
    scored = start.logprobs([1.0, 2.0])
    assert scored == [103.0, 206.0] and not scored[0].requires_grad
    assert policy.trained.tolist() == [3.0, 6.0] and start.parts()["trained"].tolist() == [1.0, 2.0]


def test_an_error_in_the_middle_leaves_the_policy_its_own_weights(start, policy):
    with pytest.raises(TypeError):
        start.logprobs(["no batch"])
    assert policy.trained.tolist() == [3.0, 6.0]


def test_released_they_are_the_policys_own_again(start):
    start.release()
    assert not start.is_kept and start.logprobs([1.0]) == [109.0]
