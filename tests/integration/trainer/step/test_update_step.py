"""The streamed gradient of a mini-batch: against whole batches, plain references, and two ranks."""

import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch

from rl_agent.config.sections.grpo import ParallelSettings
from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.model.fused import use_fused_kernels
from rl_agent.trainer.grpo.model.parallel import shard, whole
from rl_agent.trainer.grpo.step.losses import Clip, clipped_surrogate
from rl_agent.trainer.grpo.step.update_step import UpdateStep
from tests.integration.trainer.ranks import (
    LOSSES,
    OF_MICRO_BATCHES,
    OF_SEQUENCES,
    OVERLONG,
    compute,
    distance,
    move,
)
from tests.integration.trainer.samples import beginning, random_groups, tiny_policy
from tests.integration.trainer.settings import PARALLEL, batch_settings, loss_settings

PLAIN = {"grpo": LOSSES["grpo"]}
OF_OTHER_PASSES = {
    name: LOSSES[name] for name in ("sequence_mean with KL in the loss", "reinforce with an entropy bonus")
}
"""Losses that need more of a forward pass than logprobs, or a second one."""


@pytest.mark.parametrize("variant", (PLAIN | OF_SEQUENCES).values(), ids=PLAIN | OF_SEQUENCES)
def test_a_streamed_gradient_is_that_of_the_whole_batch(alone, variant):
    whole, whole_metrics = compute(alone, "whole", **variant)
    streamed, streamed_metrics = compute(alone, "streamed", **variant)
    assert distance(streamed, whole) < 1e-6
    assert whole_metrics.pop("micro_batches") == 1 < streamed_metrics.pop("micro_batches")
    assert streamed_metrics == pytest.approx(whole_metrics, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("variant", (PLAIN | OF_OTHER_PASSES).values(), ids=PLAIN | OF_OTHER_PASSES)
def test_prompts_computed_once_make_the_gradient_of_sequences_apart(alone, variant):
    variant = variant | {"groups": {"count": 6, "prompt": 40}, "dtype": torch.float64}
    apart, apart_metrics = compute(alone, "whole", **variant)
    apart_tokens = apart_metrics["computed_tokens"]
    for name in OF_MICRO_BATCHES:
        apart_metrics.pop(name)
    for arrival, share in (("whole", 0.65), ("streamed", 0.95)):  # micro-batches of two sequences or more
        shared, metrics = compute(alone, arrival, shares=True, **variant)
        assert distance(shared, apart) < 1e-6, arrival
        assert apart_tokens == metrics["total_tokens"]
        assert metrics["computed_tokens"] < share * metrics["total_tokens"]
        for name in OF_MICRO_BATCHES:
            metrics.pop(name)
        assert metrics == pytest.approx(apart_metrics, rel=1e-6, abs=1e-7), arrival


def test_gdpo_is_the_gradient_of_the_advantages_that_its_equations_give(alone):
    """Liu et al. 2026 (GDPO), eq. 4 to 7, written out; REINFORCE takes them as they are."""
    weights = {"answer": 1.0, "format": 0.5}
    generator = np.random.default_rng(7)
    groups, expected = [], []
    for group in random_groups(4):
        named = generator.integers(0, 2, (2, len(group.samples))).astype(float).tolist()
        of_each = [[plain_advantage(rewards, i, "grpo") for i in range(len(rewards))] for rewards in named]
        expected += [a + 0.5 * b for a, b in zip(*of_each, strict=True)]
        rewards = [dict(zip(weights, pair, strict=True)) for pair in zip(*named, strict=True)]
        sums = [pair["answer"] + 0.5 * pair["format"] for pair in rewards]
        groups.append(with_rewards(group, sums, rewards))
    deviation = statistics.stdev(expected) + 1e-6
    final = iter([(a - statistics.fmean(expected)) / deviation for a in expected])
    as_rewards = [with_rewards(group, [next(final) for _ in group.samples]) for group in groups]
    each = gradient_of(alone, groups, rewards="each", reward_weights=weights)
    assert distance(each, gradient_of(alone, as_rewards, advantage="reinforce")) < 1e-5


def with_rewards(group, rewards, named=None):
    named = named or [{}] * len(rewards)
    pairs = zip(group.samples, rewards, named, strict=True)
    return replace(group, samples=tuple(replace(s, reward=r, rewards=n) for s, r, n in pairs))


def gradient_of(ranks, groups, **loss) -> dict[str, torch.Tensor]:
    policy = tiny_policy(seed=0)
    shard(policy, ranks, ParallelSettings.model_validate(PARALLEL))
    step = UpdateStep(policy, None, ranks, loss_settings(**loss), batch_settings())
    step.add(groups)
    step.finish()
    return {name: whole(p.grad).clone() for name, p in policy.named_parameters()}


@pytest.mark.parametrize(
    ("loss", "is_same"),
    [
        ({"normalization": "token_mean"}, True),
        ({"normalization": "sequence_mean"}, True),
        ({"normalization": "dr_grpo"}, True),
        ({"policy_loss": "gspo", "proximal": "behaviour", "correction": "none"}, False),
        ({"sequence_mask": "product", "sequence_mask_bound": 1e4}, False),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_cut_between_turns_changes_a_loss_of_sequences_alone(alone, loss, is_same):
    groups = random_groups(4, turns=2)
    cut = [replace(group, samples=tuple(map(cut_in_turns, group.samples))) for group in groups]
    assert (distance(gradient_of(alone, cut, **loss), gradient_of(alone, groups, **loss)) < 1e-5) == is_same


def cut_in_turns(sample):
    """The same episode, of which the context was sent anew before the second turn."""
    (segment,) = sample.segments
    begins = int(np.flatnonzero(np.diff(segment.is_response.astype(int)) == -1)[0]) + 1
    second = segment.is_response & (np.arange(len(segment)) >= begins)
    again = replace(segment, is_response=second, behaviour=np.where(second, segment.behaviour, np.float32(0)))
    return replace(sample, segments=(beginning(segment, begins), again))


def test_groups_that_come_one_by_one_share_their_micro_batches(alone):
    policy = tiny_policy(seed=0)
    shard(policy, alone, ParallelSettings.model_validate(PARALLEL))
    budget = 500
    step = UpdateStep(policy, None, alone, loss_settings(), batch_settings(token_budget=budget))
    groups = random_groups(16)
    for group in groups:
        step.add([group])
    full = sum(len(s) for group in groups for sample in group.trained for s in sample.segments) / budget
    assert step.finish()["micro_batches"] < full / 0.85 + 1


def plain_loss(policy, reference, variant: dict) -> torch.Tensor:
    """The mini-batch's loss from the written equations, an episode at a time, by transformers alone."""
    losses, kl_coefficient = [], 0.1
    start = tiny_policy(seed=0)
    start.model.set_attn_implementation("sdpa")
    for group in random_groups(6):
        scored = [[score(policy, s) for s in sample.segments] for sample in group.samples]
        logprobs = [torch.cat([pair[0] for pair in pairs]) for pairs in scored]
        entropies = [torch.cat([pair[1] for pair in pairs]) for pairs in scored]
        frozen = [torch.cat([score(reference, s)[0] for s in x.segments]).detach() for x in group.samples]
        began = [torch.cat([score(start, s)[0] for s in x.segments]).detach() for x in group.samples]
        rewards = [sample.reward for sample in group.samples]
        if variant.get("overlong") == "penalty":
            beyond = [(s.longest_response - 12) / 8 for s in group.samples]
            rewards = [r - min(max(b, 0.0), 1.0) for r, b in zip(rewards, beyond, strict=True)]
        if variant.get("kl_in") == "reward":
            kls = [float((a.detach() - b).sum()) for a, b in zip(logprobs, frozen, strict=True)]
            rewards = [r - kl_coefficient * kl for r, kl in zip(rewards, kls, strict=True)]
        for index, sample in enumerate(group.samples):
            if variant.get("overlong") == "mask" and sample.is_cut:
                continue
            behaviour = torch.cat([torch.tensor(s.behaviour[s.is_response]) for s in sample.segments])
            advantage = plain_advantage(rewards, index, variant.get("advantage", "grpo"))
            token_losses = plain_token_losses(logprobs[index], began[index], behaviour, advantage, variant)
            if variant.get("kl_in") == "loss":
                d = frozen[index] - logprobs[index]
                ratio = (logprobs[index] - began[index]).exp().detach()
                weight = (began[index] - behaviour).exp().clamp(max=2.0) * ratio.clamp(max=1.28)
                token_losses = token_losses + kl_coefficient * weight * (d.exp() - 1 - d)
            token_losses = token_losses - variant.get("entropy_coefficient", 0.0) * entropies[index]
            losses.append(token_losses)
    if variant.get("normalization") == "sequence_mean":
        return torch.stack([episode.mean() for episode in losses]).mean()
    if variant.get("normalization") == "dr_grpo":
        return torch.stack([episode.sum() / 64 for episode in losses]).mean()
    return torch.cat(losses).mean()


@torch.no_grad()
def plain_kl(policy, reference) -> float:
    """k1 over all response tokens."""
    segments = [s for group in random_groups(6) for sample in group.samples for s in sample.segments]
    return float(torch.cat([score(policy, s)[0] - score(reference, s)[0] for s in segments]).mean())


def score(policy, segment) -> tuple[torch.Tensor, torch.Tensor]:
    token_ids = torch.as_tensor(segment.token_ids).long()
    log_p = policy.model(input_ids=token_ids[None], use_cache=False).logits[0].log_softmax(-1)
    chosen = torch.as_tensor(np.flatnonzero(segment.is_response))
    entropies = -(log_p.exp() * log_p).sum(-1)
    return log_p[chosen - 1, token_ids[chosen]], entropies[chosen - 1]


def plain_advantage(rewards: list[float], index: int, estimator: str) -> float:
    if estimator == "reinforce":
        return rewards[index]
    if estimator == "rloo":
        return rewards[index] - statistics.fmean(rewards[:index] + rewards[index + 1 :])
    centered = rewards[index] - statistics.fmean(rewards)
    return centered if estimator == "dr_grpo" else centered / (statistics.stdev(rewards) + 1e-6)


def plain_token_losses(logprobs, began, behaviour, advantage: float, variant: dict) -> torch.Tensor:
    """`began`: under the weights that the iteration began with, the policy's own in all but one variant."""
    advantages = torch.full_like(logprobs, advantage)
    if variant.get("proximal") == "behaviour":
        return clipped_surrogate(logprobs, behaviour, advantages, Clip(0.2, 0.28, 3.0)).loss
    importance = (began - behaviour).exp()
    if variant.get("correction") == "mask":
        importance = importance * ((importance >= 0.2) & (importance <= 5.0))
    else:
        importance = importance.clamp(max=2.0)
    ratio = (logprobs - began).exp()
    gained = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
    if advantage < 0:
        gained = gained.clamp(min=3.0 * advantage)
    return -importance * gained


@pytest.mark.parametrize("variant", (LOSSES | OVERLONG).values(), ids=LOSSES | OVERLONG)
def test_loss_and_gradient_are_those_of_the_written_equations(alone, variant):
    gradients, metrics = compute(alone, "streamed", **variant)
    policy, reference = tiny_policy(seed=0), tiny_policy(seed=9)
    if variant.get("proximal") == "iteration":
        move(policy)
        assert 0.05 < metrics["clip_fraction"] < 0.5
    policy.model.set_attn_implementation("sdpa")
    reference.model.set_attn_implementation("sdpa")
    loss = plain_loss(policy, reference, variant)
    loss.backward()
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    expected = {name: p.grad for name, p in policy.named_parameters()}
    assert distance(gradients, expected) < 1e-5
    norm = torch.stack([g.norm() for g in expected.values()]).norm().item()
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert metrics["cut_share"] == 0.25
    assert metrics["episodes"] == (18 if variant.get("overlong") == "mask" else 24)
    assert (metrics["length_penalty"] > 0.1) == (variant.get("overlong") == "penalty")
    if variant.get("kl_in") == "reward":
        assert metrics["kl"] == pytest.approx(plain_kl(policy, reference), rel=1e-4)


@pytest.mark.parametrize("reshards", [False, None], ids=["layer by layer", "all at once"])
def test_weights_that_stay_gathered_differ_from_those_of_the_beginning(alone, reshards):
    variant = LOSSES["a later step of an iteration"]
    expected, _ = compute(alone, "streamed", **variant)
    gradients, _ = compute(alone, "streamed", parallel={"reshard_after_forward": reshards}, **variant)
    assert distance(gradients, expected) < 1e-6


def test_half_precision_layers_keep_gradients_in_full_precision(alone):
    expected, _ = compute(alone, "whole")
    gradients, _ = compute(alone, "streamed", parallel={"precision": "bf16"})
    assert all(gradient.dtype == torch.float32 for gradient in gradients.values())
    assert 1e-4 < distance(gradients, expected) < 0.1


@pytest.mark.extended  # the compiler takes most of a minute
@pytest.mark.filterwarnings("ignore")  # it warns about itself
def test_compiled_layers_compute_the_same_gradient(alone):
    expected, _ = compute(alone, "streamed")
    gradients, _ = compute(alone, "streamed", parallel={"compile_layers": True})
    assert distance(gradients, expected) < 1e-5


def test_fused_kernels_that_cannot_be_had_are_left_out_or_refused():
    device = torch.device("cpu")
    assert use_fused_kernels(tiny_policy(seed=0).model, None, device) is False
    with pytest.raises(ConfigError, match=r"^trainer\.parallel\.use_liger_kernel: needs a GPU; null "):
        use_fused_kernels(tiny_policy(seed=0).model, True, device)
