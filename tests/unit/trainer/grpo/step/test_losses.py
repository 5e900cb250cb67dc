"""Advantages and losses against plain references, and their gradients against finite differences."""

import math
import statistics

import pytest
import torch

from rl_agent.trainer.grpo.step.losses import (
    Clip,
    Sequences,
    behaviour_weights,
    cispo_surrogate,
    clipped_surrogate,
    denominator,
    kl_estimate,
    kl_weights,
    policy_surrogate,
    sapo_surrogate,
    sequence_mask,
    token_weights,
)
from tests.unit.config.overrides.test_compose import compose


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def plain_surrogate(ratio: float, advantage: float, clip: Clip) -> float:
    clipped = min(max(ratio, 1 - clip.low), 1 + clip.high)
    objective = min(ratio * advantage, clipped * advantage)
    if clip.dual is not None and advantage < 0:
        objective = max(objective, clip.dual * advantage)
    return -objective


@pytest.mark.parametrize("clip", [Clip(0.2, 0.2, None), Clip(0.2, 0.28, None), Clip(0.2, 0.2, 3.0)], ids=str)
def test_the_surrogate_equals_that_of_the_written_equation(clip):
    ratios = [0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 1.27, 1.29, 2.9, 3.1]
    for advantage in (-1.5, -0.1, 0.0, 0.7):
        logprobs = tensor([math.log(r) - 1.0 for r in ratios])
        proximal = torch.full_like(logprobs, -1.0)
        surrogate = clipped_surrogate(logprobs, proximal, torch.full_like(logprobs, advantage), clip)
        expected = [plain_surrogate(r, advantage, clip) for r in ratios]
        assert surrogate.loss.tolist() == pytest.approx(expected)
        assert surrogate.ratio.tolist() == pytest.approx(ratios)


@pytest.mark.parametrize("dual", [None, 3.0])
def test_clipped_says_exactly_where_the_gradient_is_gone(dual):
    logprobs = tensor([math.log(r) for r in (0.5, 0.9, 1.1, 1.5, 4.0)] * 2).requires_grad_()
    advantages = tensor([1.0] * 5 + [-1.0] * 5)
    surrogate = clipped_surrogate(logprobs, torch.zeros_like(logprobs), advantages, Clip(0.2, 0.28, dual))
    (gradient,) = torch.autograd.grad(surrogate.loss.sum(), logprobs)
    assert surrogate.is_clipped.tolist() == (gradient == 0).tolist()
    assert surrogate.is_clipped.sum() == (3 if dual is None else 4)


@pytest.mark.parametrize("clip", [Clip(0.2, 0.28, None), Clip(0.2, 0.2, 3.0)], ids=str)
def test_the_surrogates_gradient_agrees_with_finite_differences(clip):
    torch.manual_seed(0)
    logprobs = torch.randn(40, dtype=torch.float64, requires_grad=True)
    proximal = logprobs.detach() + 0.5 * torch.randn(40, dtype=torch.float64)
    advantages = torch.randn(40, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x: clipped_surrogate(x, proximal, advantages, clip).loss, (logprobs,)
    )


LENGTHS = (1, 4, 2, 7)
"""Tokens of four sequences."""
INDEX = [number for number, length in enumerate(LENGTHS) for _ in range(length)]
SEQUENCES = Sequences(torch.tensor(INDEX), len(LENGTHS))


def loss_settings(*words: str):
    return compose("trainer=grpo", "pool=elastic", "rollout.group_size=8", *words).config.grpo.loss


def drawn_tokens():
    """Policy and proximal logprobs of the tokens of `LENGTHS`, and the advantage of their sequence."""
    torch.manual_seed(3)
    logprobs = -torch.rand(len(INDEX), dtype=torch.float64) - 0.5
    proximal = logprobs + 0.4 * torch.randn(len(INDEX), dtype=torch.float64)
    return logprobs, proximal, tensor([0.9, -1.2, 1.5, -0.3])[INDEX]


def plain_gspo(logprobs: list[float], proximal: list[float], advantages: list[float], low, high) -> float:
    """Zheng et al. 2025, eq. 5 and 7: the mean over sequences, each with one ratio."""
    losses = []
    for number, length in enumerate(LENGTHS):
        tokens = [t for t, index in enumerate(INDEX) if index == number]
        s = math.exp(sum(logprobs[t] - proximal[t] for t in tokens) / length)
        advantage = advantages[tokens[0]]
        losses.append(-min(s * advantage, min(max(s, 1 - low), 1 + high) * advantage))
    return statistics.fmean(losses)


def numeric_gradient(function, values: list[float]) -> list[float]:
    step = 1e-6

    def moved(index: int, by: float) -> float:
        return function([value + by * (i == index) for i, value in enumerate(values)])

    return [(moved(i, step) - moved(i, -step)) / (2 * step) for i in range(len(values))]


def test_gspo_equals_the_written_equation_in_value_and_gradient():
    logprobs, proximal, advantages = drawn_tokens()
    settings = loss_settings(
        "trainer/recipe=gspo", "trainer.loss.clip_low=0.05", "trainer.loss.clip_high=0.1"
    )
    policy = logprobs.clone().requires_grad_()
    surrogate = policy_surrogate(policy, proximal, advantages, SEQUENCES, settings)
    lengths = tensor([float(LENGTHS[index]) for index in INDEX])
    total = (token_weights(lengths, settings.normalization) * surrogate.loss).sum() / len(LENGTHS)
    (gradient,) = torch.autograd.grad(total, policy)

    def plain(values: list[float]) -> float:
        return plain_gspo(values, proximal.tolist(), advantages.tolist(), 0.05, 0.1)

    assert total.item() == pytest.approx(plain(logprobs.tolist()), abs=1e-12)
    assert gradient.tolist() == pytest.approx(numeric_gradient(plain, logprobs.tolist()), abs=1e-8)
    assert 0 < surrogate.is_clipped.sum() < len(INDEX)


def test_cispo_equals_the_written_equation_and_keeps_every_gradient():
    """MiniMax 2025 (MiniMax-M1), eq. 4 and 5."""
    logprobs, proximal, advantages = drawn_tokens()
    policy = logprobs.clone().requires_grad_()
    surrogate = cispo_surrogate(policy, proximal, advantages, Clip(1.0, 0.2, None))
    (gradient,) = torch.autograd.grad(surrogate.loss.sum(), policy)
    weights = [
        min(max(math.exp(p - q), 0.0), 1.2) for p, q in zip(logprobs.tolist(), proximal.tolist(), strict=True)
    ]
    expected = [-w * a for w, a in zip(weights, advantages.tolist(), strict=True)]
    assert gradient.tolist() == pytest.approx(expected, abs=1e-12)
    values = [g * p for g, p in zip(expected, logprobs.tolist(), strict=True)]
    assert surrogate.loss.tolist() == pytest.approx(values, abs=1e-12)
    assert surrogate.is_clipped.tolist() == [weight == 1.2 for weight in weights]


def plain_sapo(logprob: float, proximal: float, advantage: float, positive: float, negative: float) -> float:
    """Gao et al. 2025 (SAPO), eq. 5 and 6."""
    tau = positive if advantage > 0 else negative
    gate = 4 / tau / (1 + math.exp(-tau * (math.exp(logprob - proximal) - 1)))
    return -gate * advantage


def test_sapo_equals_the_written_equation_in_value_and_gradient():
    logprobs, proximal, advantages = drawn_tokens()
    policy = logprobs.clone().requires_grad_()
    surrogate = sapo_surrogate(policy, proximal, advantages, (1.0, 1.5))
    (gradient,) = torch.autograd.grad(surrogate.loss.sum(), policy)
    constants = list(zip(proximal.tolist(), advantages.tolist(), strict=True))

    def plain(values: list[float]) -> float:
        return sum(plain_sapo(p, *rest, 1.0, 1.5) for p, rest in zip(values, constants, strict=True))

    assert surrogate.loss.sum().item() == pytest.approx(plain(logprobs.tolist()), abs=1e-12)
    assert gradient.tolist() == pytest.approx(numeric_gradient(plain, logprobs.tolist()), abs=1e-8)


@pytest.mark.parametrize("recipe", ["grpo", "dapo", "dr_grpo", "gspo", "cispo", "sapo", "rloo", "reinforce"])
def test_every_recipe_starts_on_policy_as_the_plain_policy_gradient(recipe):
    """Each objective has the gradient −A ∇ log π if the policy is the proximal one."""
    logprobs, _, advantages = drawn_tokens()
    policy = logprobs.clone().requires_grad_()
    settings = loss_settings(f"trainer/recipe={recipe}")
    loss = policy_surrogate(policy, logprobs, advantages, SEQUENCES, settings).loss
    lengths = tensor([float(LENGTHS[index]) for index in INDEX])
    (gradient,) = torch.autograd.grad((loss / lengths).sum(), policy)
    torch.testing.assert_close(gradient, -advantages / lengths)


@pytest.mark.parametrize("kind", ["product", "geometric"])
def test_a_sequence_mask_leaves_out_whole_sequences_by_their_weight(kind):
    _, proximal, _ = drawn_tokens()
    behaviour = proximal + tensor([0.5, 0.01, -0.01, 0.2, -0.1, 0.0, 0.0, *[0.3] * 7])
    settings = loss_settings(f"trainer.loss.sequence_mask={kind}", "trainer.loss.sequence_mask_bound=1.5")
    mask = sequence_mask(proximal.requires_grad_(), behaviour, SEQUENCES, settings)
    weights = []
    for number, length in enumerate(LENGTHS):
        tokens = [t for t, index in enumerate(INDEX) if index == number]
        product = math.prod(math.exp(proximal[t].item() - behaviour[t].item()) for t in tokens)
        weights.append(product if kind == "product" else product ** (1 / length))
    assert mask.tolist() == [float(1 / 1.5 <= weights[index] <= 1.5) for index in INDEX]
    assert 0 < mask.sum() < len(INDEX)
    assert not mask.requires_grad


def test_without_a_sequence_mask_every_token_counts():
    logprobs, proximal, _ = drawn_tokens()
    assert sequence_mask(logprobs, proximal, SEQUENCES, loss_settings()).tolist() == [1.0] * len(INDEX)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_kl_estimates_gradient_agrees_with_finite_differences(estimator):
    torch.manual_seed(0)
    logprobs = torch.randn(20, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(20, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, reference, estimator), (logprobs,))


def test_k1_and_k3_average_to_the_kl_divergence_under_the_policy():
    torch.manual_seed(0)
    policy = torch.log_softmax(torch.randn(7, dtype=torch.float64), 0)
    reference = torch.log_softmax(torch.randn(7, dtype=torch.float64), 0)
    exact = (policy.exp() * (policy - reference)).sum()
    for estimator in ("k1", "k3"):
        assert (policy.exp() * kl_estimate(policy, reference, estimator)).sum() == pytest.approx(exact.item())
    assert (kl_estimate(policy, reference, "k3") >= 0).all()
    assert kl_estimate(policy, policy, "k2").tolist() == [0.0] * 7


def test_where_a_kl_estimate_stands_decides_which_divergence_it_pulls_on():
    """Exact averages over a small vocabulary; the settings allow those with a gradient that regularises."""
    torch.manual_seed(0)
    reference = torch.log_softmax(torch.randn(7, dtype=torch.float64), 0)
    shift = torch.randn(7, dtype=torch.float64)

    def gradients(distance: float) -> dict[str, torch.Tensor]:
        logits = (reference + distance * shift).requires_grad_()
        policy = torch.log_softmax(logits, 0)
        sampled = policy.detach().exp()
        terms = {
            "to the reference": (policy.exp() * (policy - reference)).sum(),
            "from the reference": (reference.exp() * (reference - policy)).sum(),
        }
        for name in ("k1", "k2", "k3"):
            estimate = kl_estimate(policy, reference, name)
            terms[f"{name} in the loss"] = (sampled * estimate).sum()
            terms[f"{name} in the reward"] = (sampled * estimate.detach() * policy).sum()
        return {name: torch.autograd.grad(term, logits, retain_graph=True)[0] for name, term in terms.items()}

    far = gradients(0.5)
    torch.testing.assert_close(far["k2 in the loss"], far["to the reference"])
    torch.testing.assert_close(far["k1 in the reward"], far["to the reference"])
    torch.testing.assert_close(far["k3 in the loss"], far["from the reference"])
    assert far["k1 in the loss"].abs().max() < 1e-15
    near = gradients(0.01)
    wanted = near["to the reference"].norm()
    assert near["k2 in the reward"].norm() < 0.03 * wanted
    assert near["k3 in the reward"].norm() < 0.03 * wanted


def test_importance_weights_are_truncated_or_masked_and_carry_no_gradient():
    weights = [0.1, 0.6, 1.0, 1.9, 5.0]
    proximal = tensor([math.log(w) for w in weights]).requires_grad_()
    behaviour = torch.zeros_like(proximal)
    importance = {
        correction: behaviour_weights(proximal, behaviour, correction, low=0.5, high=2.0)
        for correction in ("none", "truncate", "mask")
    }
    assert importance["none"].tolist() == [1.0] * 5
    assert importance["truncate"].tolist() == pytest.approx([0.1, 0.6, 1.0, 1.9, 2.0])
    assert importance["mask"].tolist() == pytest.approx([0.0, 0.6, 1.0, 1.9, 0.0])
    assert not any(w.requires_grad for w in importance.values())


def test_a_token_that_the_engine_called_impossible_gives_finite_weights():
    behaviour = tensor([-math.inf, -1.0])
    weights = behaviour_weights(tensor([-1.0, -1.0]), behaviour, "truncate", low=0.5, high=2.0)
    assert weights.tolist() == [2.0, 1.0]


def test_exact_importance_weights_make_the_decoupled_gradient_the_policys():
    """The sum over all tokens of a small vocabulary: E_μ[w L] has the gradient −E_π[A ∇log π] for any μ."""
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    behaviour = torch.log_softmax(torch.randn(6, dtype=torch.float64), 0)
    advantages = torch.randn(6, dtype=torch.float64)
    logprobs = torch.log_softmax(logits, 0)
    proximal = logprobs.detach()
    surrogate = clipped_surrogate(logprobs, proximal, advantages, Clip(0.2, 0.2, None))
    weights = behaviour_weights(proximal, behaviour, "truncate", low=0.0, high=math.inf)
    (decoupled,) = torch.autograd.grad((behaviour.exp() * weights * surrogate.loss).sum(), logits)
    expected = -(torch.log_softmax(logits, 0).exp() * advantages).sum()
    (exact,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(decoupled, exact)


@pytest.mark.parametrize("decoupled", [True, False], ids=["decoupled", "against the engine"])
@pytest.mark.parametrize(("estimator", "is_from_reference"), [("k2", False), ("k3", True)])
def test_the_kl_of_off_policy_tokens_is_weighted_to_the_policys(decoupled, estimator, is_from_reference):
    """The sum over all tokens of a small vocabulary: E_μ[v ∇KL_t] is what E_π[∇KL_t] is, whatever μ is."""
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    behaviour, start, reference = torch.log_softmax(torch.randn(3, 6, dtype=torch.float64), 1)
    policy = torch.log_softmax(logits, 0)
    proximal, correction = (start, "truncate") if decoupled else (behaviour, "none")
    clip = Clip(0.2, math.inf, None)
    importance = behaviour_weights(proximal, behaviour, correction, low=0.0, high=math.inf)
    ratio = clipped_surrogate(policy, proximal, torch.ones(6), clip).ratio
    weights = kl_weights(importance, ratio, clip)
    assert not weights.requires_grad
    term = (behaviour.exp() * weights * kl_estimate(policy, reference, estimator)).sum()
    (gradient,) = torch.autograd.grad(term, logits, retain_graph=True)
    to_reference = (policy.exp() * (policy - reference)).sum()
    from_reference = (reference.exp() * (reference - policy)).sum()
    (expected,) = torch.autograd.grad(from_reference if is_from_reference else to_reference, logits)
    torch.testing.assert_close(gradient, expected)


def test_the_weight_of_a_kl_estimate_is_bounded_as_the_ratio_is():
    weights = kl_weights(tensor([2.0] * 4), tensor([0.1, 1.0, 1.25, 9.0]), Clip(0.2, 0.28, 3.0))
    assert weights.tolist() == pytest.approx([0.2, 2.0, 2.5, 2.56])


def plain_mini_batch_loss(losses: list[list[float]], normalization: str, constant_length: int) -> float:
    """`losses` holds a list of token losses for each episode."""
    if normalization == "token_mean":
        return sum(map(sum, losses)) / sum(map(len, losses))
    if normalization == "sequence_mean":
        return statistics.fmean(sum(episode) / len(episode) for episode in losses)
    return statistics.fmean(sum(episode) / constant_length for episode in losses)


@pytest.mark.parametrize("normalization", ["token_mean", "sequence_mean", "dr_grpo"])
def test_weights_and_denominator_make_the_written_mean(normalization):
    losses = [[1.0, 2.0, 4.0], [3.0], [0.5, 0.25, -7.0, 1.0, 1.0]]
    flat = tensor([loss for episode in losses for loss in episode])
    lengths = tensor([float(len(episode)) for episode in losses for _ in episode])
    total = (token_weights(lengths, normalization) * flat).sum()
    loss = total / denominator(len(flat), len(losses), normalization, constant_length=16)
    assert loss.item() == pytest.approx(plain_mini_batch_loss(losses, normalization, 16))


@pytest.mark.parametrize("normalization", ["token_mean", "sequence_mean", "dr_grpo"])
def test_an_empty_mini_batch_divides_by_no_zero(normalization):
    assert denominator(0, 0, normalization, constant_length=16) > 0
