"""AdamW against PyTorch's own, and the learning rate's schedule."""

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from rl_agent.config.sections.grpo import LossSettings, OptimizerSettings
from rl_agent.trainer.grpo.step.optimizer import AdamW, clip_gradients, learning_rate
from tests.integration.trainer.settings import LOSS

SETTINGS = {
    "learning_rate": 1e-2,
    "schedule": "constant",
    "warmup_steps": 0,
    "decay_steps": None,
    "beta1": 0.9,
    "beta2": 0.95,
    "epsilon": 1e-8,
    "weight_decay": 0.1,
    "max_grad_norm": 1.0,
}


def settings(**changes) -> OptimizerSettings:
    return OptimizerSettings.model_validate(SETTINGS | changes)


def test_updates_are_those_of_pytorchs_adamw():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    optimizer = AdamW(ours, settings(warmup_steps=3), offload=True)
    expected = torch.optim.AdamW(theirs.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(8):
        for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            parameter.grad = torch.randn_like(parameter)
            other.grad = parameter.grad.clone()
        expected.param_groups[0]["lr"] = learning_rate(settings(warmup_steps=3), step)
        optimizer.update()
        expected.step()
    for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("offload", [False, True])
def test_a_weight_that_no_response_meets_stays_as_it_is(offload):
    """A multimodal model, trained as a text model, has a part for images that gets no gradient."""
    module = nn.ModuleDict({"text": nn.Linear(3, 2), "images": nn.Linear(3, 2)})
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    optimizer = AdamW(module, settings(), offload=offload)
    module["text"](torch.randn(4, 3)).sum().backward()
    optimizer.update()
    unchanged = {name for name, weight in module.named_parameters() if torch.equal(weight, before[name])}
    assert unchanged == {"images.weight", "images.bias"}


@pytest.mark.parametrize("offload", [False, True])
def test_a_step_without_any_gradient_changes_no_weight(offload):
    module = nn.Linear(3, 2)
    before = module.weight.detach().clone()
    optimizer = AdamW(module, settings(), offload=offload)
    optimizer.update()
    assert torch.equal(module.weight, before) and optimizer.updates == 1


def test_a_skipped_step_leaves_moments_and_their_bias_correction():
    """Against the written equations in fp64, over the updates alone."""
    module = nn.Linear(3, 2, bias=False).double()
    optimizer = AdamW(module, settings(weight_decay=0.0), offload=False)
    optimizer.moments = {n: tuple(m.double() for m in pair) for n, pair in optimizer.moments.items()}
    expected = module.weight.detach().clone()
    first, second = torch.zeros_like(expected), torch.zeros_like(expected)
    updates = 0
    for is_skipped in (True, False, True, True, False, False):
        if is_skipped:
            optimizer.skip()
            continue
        updates += 1
        gradient = module.weight.grad = torch.randn_like(expected)
        optimizer.update()
        first = 0.9 * first + 0.1 * gradient
        second = 0.95 * second + 0.05 * gradient**2
        unbiased = first / (1 - 0.9**updates), second / (1 - 0.95**updates)
        expected = expected - 1e-2 * unbiased[0] / (unbiased[1].sqrt() + 1e-8)
    assert (optimizer.steps, optimizer.updates) == (6, 3)
    torch.testing.assert_close(module.weight.detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "rates"),
    [
        ({}, {0: 1.0, 999: 1.0}),
        ({"warmup_steps": 4}, {0: 0.25, 3: 1.0, 4: 1.0}),
        ({"schedule": "linear", "decay_steps": 10}, {0: 1.0, 5: 0.5, 10: 0.0, 11: 0.0}),
        ({"schedule": "cosine", "warmup_steps": 2, "decay_steps": 12}, {0: 0.5, 2: 1.0, 7: 0.5, 12: 0.0}),
    ],
    ids=["constant", "warmup", "linear", "cosine"],
)
def test_the_learning_rate_follows_its_schedule(changes, rates):
    chosen = settings(learning_rate=1.0, **changes)
    assert {step: learning_rate(chosen, step) for step in rates} == pytest.approx(rates, abs=1e-12)


def test_only_gradients_that_are_too_long_are_shortened():
    module = nn.Linear(2, 1, bias=False)
    module.weight.grad = torch.tensor([[3.0, 4.0]])
    clip_gradients(module, 5.0, 10.0)
    assert module.weight.grad.tolist() == [[3.0, 4.0]]
    clip_gradients(module, 5.0, 1.0)
    assert module.weight.grad.tolist() == [pytest.approx([0.6, 0.8])]


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ValidationError, match="decay_steps must be"):
        settings(schedule="linear")
    loss = LOSS | {"proximal": "behaviour", "correction": "none"}
    assert LossSettings.model_validate(loss).proximal == "behaviour"
    with pytest.raises(ValidationError, match="correction must be"):
        LossSettings.model_validate(loss | {"correction": "truncate"})
    with pytest.raises(ValidationError, match="temperature must be"):
        LossSettings.model_validate(loss | {"temperature": 0.6})
