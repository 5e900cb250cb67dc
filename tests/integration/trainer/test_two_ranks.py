"""Two ranks make the gradient of one: of every loss, however groups arrive, with adapters and with experts.

All cases come from one start of two processes (`ranks.results`), so they stand in one file.
"""

import pytest
import torch

from tests.integration.trainer.model.tiny_vision import (
    PlainModel,
    lone_picture,
    pictures,
    vision_groups,
    vision_policy,
)
from tests.integration.trainer.ranks import (
    ADAPTED,
    EXPERTS,
    IMAGES,
    LONE_IMAGE,
    OF_MICRO_BATCHES,
    ONE_BY_ONE,
    VARIANTS,
    compute,
    distance,
    results,
)
from tests.integration.trainer.step.test_update_step import plain_advantage

pytestmark = pytest.mark.timeout(300)  # the two processes take 20 to 90 s


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_ranks_make_the_gradient_of_one(alone, variant):
    expected, expected_metrics = compute(alone, "whole", **VARIANTS[variant] | {"shares": False})
    for name in OF_MICRO_BATCHES:
        expected_metrics.pop(name)
    for case, (actual, metrics) in results(variant).items():
        assert distance(actual, expected) < 1e-6, case
        # Losses of both signs add up to a hundredth of their size.
        shared = {name: value for name, value in metrics.items() if name not in OF_MICRO_BATCHES}
        assert shared == pytest.approx(expected_metrics, rel=1e-6, abs=1e-7), case


@pytest.mark.parametrize("variant", ONE_BY_ONE)
def test_ranks_that_score_by_sequence_make_the_gradient_of_packed_ones(alone, variant):
    expected, _ = compute(alone, "whole", **ONE_BY_ONE[variant] | {"is_packed": True})
    for case, (actual, _) in results(variant).items():
        assert distance(actual, expected) < 1e-5, case


@pytest.mark.parametrize("variant", ADAPTED)
def test_two_ranks_make_the_gradient_of_one_adapter(alone, variant):
    expected, _ = compute(alone, "whole", adapter=True, **VARIANTS[variant] | {"shares": False})
    for case, (actual, _) in results(variant, adapter=True).items():
        assert distance(actual, expected) < 1e-5, case


def test_two_ranks_read_their_experts_and_make_the_gradient_of_one(alone):
    expected, _ = compute(alone, "whole", experts=True)
    for case, (actual, _) in results(EXPERTS).items():
        assert distance(actual, expected) < 1e-5, case


@pytest.mark.parametrize("variant", IMAGES)
def test_images_on_any_ranks_make_the_gradient_of_plain_transformers(alone, variant, tmp_path):
    plain, loss = plain_gradients(IMAGES[variant], tmp_path)
    one_rank = {"one rank": compute(alone, "streamed", folder=tmp_path, **IMAGES[variant])}
    for case, (actual, metrics) in (one_rank | results(variant)).items():
        expected = plain
        if "qwen3_5" in variant:  # its gates compute in fp32, and have the smallest gradients
            actual, expected = as_one(actual), as_one(plain)
        assert distance(actual, expected) < 1e-6, case
        assert metrics["loss"] == pytest.approx(loss, rel=1e-6, abs=1e-7), case


def test_an_image_on_one_of_two_ranks_makes_the_gradient_of_one_adapter(alone, tmp_path):
    expected, _ = compute(alone, "streamed", adapter=True, folder=tmp_path, **IMAGES[LONE_IMAGE])
    for case, (actual, _) in results(LONE_IMAGE, adapter=True).items():
        assert any(".visual." in name for name in actual)
        assert distance(actual, expected) < 1e-5, case


def as_one(gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {" ".join(sorted(gradients)): torch.cat([g.flatten() for _, g in sorted(gradients.items())])}


def plain_gradients(variant, folder) -> tuple[dict[str, torch.Tensor], float]:
    """Gradients and loss from the written equations, one sequence at a time."""
    policy = vision_policy(**variant["vision"]).double()
    plain, files = PlainModel(policy), pictures(policy.model.config, folder)
    losses = []
    for group in vision_groups(files) if variant["images"] == "many" else lone_picture(files):
        rewards = [sample.reward for sample in group.samples]
        for index, sample in enumerate(group.samples):
            for segment in sample.segments:
                logprobs = plain.logprobs(segment)
                now = logprobs.detach()
                weight = (now - torch.tensor(segment.behaviour[segment.is_response])).exp().clamp(max=2.0)
                losses.append(-weight * (logprobs - now).exp() * plain_advantage(rewards, index, "grpo"))
    loss = torch.cat(losses).mean()
    loss.backward()
    is_frozen = variant["vision"]["freeze_vision_tower"]
    gradients = {n: g for n, g in plain.gradients().items() if not (is_frozen and ".visual." in n)}
    return gradients, float(loss.detach())
