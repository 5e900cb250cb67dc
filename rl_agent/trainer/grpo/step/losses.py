"""Computes the loss of each response token: pure functions of flat tensors (one element a token).

With π the policy that is trained, π_prox the proximal policy that clipping is measured against, μ the
behaviour policy (the engine that sampled, by the logprobs it returned) and π_ref a frozen reference:

    ratio_t   r = π(t) / π_prox(t)
    clipped   L = −min(r A, clip(r, 1 − ε_low, 1 + ε_high) A)           Schulman et al. 2017 (PPO), eq. 7;
                                                                        ε_low ≠ ε_high: Yu et al. 2025 (DAPO)
    dual      L = min(L, −c A) where A < 0                              Ye et al. 2020 (dual-clip PPO)
    gspo      L as clipped, of s = (Π_t r_t)^(1/|y|), one ratio for all
              tokens of the sequence y                                  Zheng et al. 2025 (GSPO), eq. 5, 7, 14
    cispo     L = −sg(clip(r, 1 − ε_low, 1 + ε_high)) A log π           MiniMax 2025 (MiniMax-M1), eq. 4, 5
    sapo      L = −(4/τ) σ(τ (r − 1)) A, τ by the sign of A             Gao et al. 2025 (SAPO), eq. 5, 6
    decoupled w = π_prox(t) / μ(t), a constant factor of L              Hilton et al. 2022; Fu et al. 2025
                                                                        (AReaL)
      truncate  min(w, c)                                               Yao et al. 2025 (truncated importance
                                                                        sampling of the engine's mismatch)
      mask      w if c_low ≤ w ≤ c_high, else 0                         Ling team 2025 (IcePop)
      sequence  w = 0 for the whole of a sequence y of which W is
                outside of its bounds: W = Π_t w_t (product), or
                (Π_t w_t)^(1/|y|) (geometric)                           Liu, Li et al. 2025 (When Speed
                                                                        Kills Stability)
    KL(π‖π_ref) with d = log π_ref − log π                              Schulman 2020 (Approximating KL)
      k1  −d        k2  d²/2        k3  exp(d) − 1 − d
    Over tokens that π sampled, the average gradient of k2 in the loss is that of KL(π‖π_ref), the one of k3
    that of KL(π_ref‖π), and the one of k1 is 0, for E[∇ log π] = 0. In the reward an estimate weighs ∇ log π
    and has no gradient of its own: there k1 gives the gradient of KL(π‖π_ref), and k2 and k3 one that is of
    second order in the distance from π_ref, where the one wanted is of first. So k2 and k3 are for the loss,
    k1 is for the reward, and the settings refuse the rest.

A mini-batch's loss is Σ_t u_t (w_t L_t + β v_t KL_t − η H_t) / N, the sum over all response tokens of all its
episodes. An estimate of the divergence is one under π, while μ sampled: v_t = w_t min(r_t, 1 + ε_high) weighs
it as the policy's term is weighed, as a constant factor. H_t is that of the whole distribution, whichever
token was sampled. With

    token_mean     u_t = 1          N = number of response tokens       Yu et al. 2025 (DAPO)
    sequence_mean  u_t = 1 / |o_i|  N = number of episodes              Shao et al. 2024 (GRPO)
    dr_grpo        u_t = 1          N = number of episodes × a constant length      Liu et al. 2025

`token_weights` gives u and `denominator` gives N; dividing is left to whoever knows the whole mini-batch.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_agent.config.sections.grpo import Correction, KlEstimator, LossSettings, Normalization

MAX_LOG_RATIO = 20.0
"""Log ratios are cut here before they are exponentiated: e^20 is beyond any clip and any use."""


@dataclass(frozen=True, slots=True)
class Clip:
    """The interval in which the ratio may move the loss."""

    low: float
    high: float
    dual: float | None
    """Bound c > 1 of the loss of a token with a negative advantage; None for none."""


@dataclass(frozen=True, slots=True)
class Surrogate:
    """The clipped objective of each token."""

    loss: Tensor
    ratio: Tensor
    is_clipped: Tensor
    """True where the clip took the gradient away; with CISPO, where it bounds the weight."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """Tells which tokens are one sequence: a context that only grew, with all of its turns."""

    index: Tensor
    """The number of each token's sequence, from 0."""
    count: int

    def mean(self, values: Tensor) -> Tensor:
        """Return for each token the mean over its sequence."""
        tokens = self._sum(torch.ones_like(values)).clamp(min=1)
        return (self._sum(values) / tokens)[self.index]

    def sum(self, values: Tensor) -> Tensor:
        """Return for each token the sum over its sequence."""
        return self._sum(values)[self.index]

    def _sum(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.count).index_add(0, self.index, values)


def policy_surrogate(
    logprobs: Tensor, proximal: Tensor, advantages: Tensor, sequences: Sequences, settings: LossSettings
) -> Surrogate:
    """Compute the objective that the settings name; `proximal` and `advantages` are constants."""
    clip = Clip(settings.clip_low, settings.clip_high, settings.dual_clip)
    if settings.policy_loss == "cispo":
        return cispo_surrogate(logprobs, proximal, advantages, clip)
    if settings.policy_loss == "sapo":
        temperatures = settings.sapo_temperature_positive, settings.sapo_temperature_negative
        return sapo_surrogate(logprobs, proximal, advantages, temperatures)
    if settings.policy_loss == "gspo":
        logprobs, proximal = sequence_ratio(logprobs, proximal, sequences)
    return clipped_surrogate(logprobs, proximal, advantages, clip)


def clipped_surrogate(logprobs: Tensor, proximal: Tensor, advantages: Tensor, clip: Clip) -> Surrogate:
    """Compute PPO's objective to minimize; `proximal` and `advantages` are constants."""
    ratio = torch.exp((logprobs - proximal).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    plain = -ratio * advantages
    bounded = -ratio.clamp(1 - clip.low, 1 + clip.high) * advantages
    loss = torch.maximum(plain, bounded)
    is_clipped = bounded > plain
    if clip.dual is not None:
        ceiling = -clip.dual * advantages
        is_bounded = (advantages < 0) & (loss > ceiling)
        loss = torch.where(is_bounded, ceiling, loss)
        is_clipped = is_clipped | is_bounded
    return Surrogate(loss, ratio, is_clipped)


def sequence_ratio(logprobs: Tensor, proximal: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """Return logprobs whose ratio is GSPO's s at every token: log π − sg(log π) + sg(log s), and 0.

    Eq. 14: its value is s, and its gradient s ∇ log π(t), whose mean over the sequence is ∇ s (eq. 10).
    """
    constant = logprobs.detach()
    return logprobs - constant + sequences.mean(constant - proximal), torch.zeros_like(proximal)


def cispo_surrogate(logprobs: Tensor, proximal: Tensor, advantages: Tensor, clip: Clip) -> Surrogate:
    """Compute CISPO's objective: clipped ratios are weights, so that every token keeps its gradient."""
    ratio = torch.exp((logprobs - proximal).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    weights = ratio.detach().clamp(1 - clip.low, 1 + clip.high)
    return Surrogate(-weights * advantages * logprobs, ratio, weights != ratio)


def sapo_surrogate(
    logprobs: Tensor, proximal: Tensor, advantages: Tensor, temperatures: tuple[float, float]
) -> Surrogate:
    """Compute SAPO's objective: a soft gate in place of the clip; temperatures of A > 0 and of A ≤ 0."""
    ratio = torch.exp((logprobs - proximal).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    positive, negative = advantages.new_tensor(temperatures)
    tau = torch.where(advantages > 0, positive, negative)
    return Surrogate(
        -torch.sigmoid(tau * (ratio - 1)) * (4 / tau) * advantages,
        ratio,
        torch.zeros_like(ratio, dtype=torch.bool),
    )


def sequence_mask(
    proximal: Tensor, behaviour: Tensor, sequences: Sequences, settings: LossSettings
) -> Tensor:
    """Return 1 for the tokens of sequences that are trained on, and 0 for those of the others."""
    if settings.sequence_mask == "none":
        return torch.ones_like(proximal)
    log_weights = (proximal - behaviour).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    combine = sequences.mean if settings.sequence_mask == "geometric" else sequences.sum
    bound = math.log(settings.largest_sequence_weight)
    return (combine(log_weights).abs() <= bound).to(proximal.dtype)


def behaviour_weights(
    proximal: Tensor, behaviour: Tensor, correction: Correction, *, low: float, high: float
) -> Tensor:
    """Compute importance weights w from the engine's policy to the proximal one, without a gradient."""
    if correction == "none":
        return torch.ones_like(proximal)
    log_weights = (proximal - behaviour).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    weights = torch.exp(log_weights)
    if correction == "truncate":
        return weights.clamp(max=high)
    return torch.where((weights >= low) & (weights <= high), weights, 0.0)


def kl_estimate(logprobs: Tensor, reference: Tensor, estimator: KlEstimator) -> Tensor:
    """Estimate KL(π‖π_ref) for each token that was sampled from π."""
    difference = reference - logprobs
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return difference.square() / 2
    difference = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(difference) - difference


def kl_weights(importance: Tensor, ratio: Tensor, clip: Clip) -> Tensor:
    """Compute importance weights v of the KL term, from the policy that sampled to the one in training.

    They carry no gradient, and are bounded as the ratio of a token with a positive advantage is.
    """
    return importance * ratio.detach().clamp(max=1 + clip.high)


def token_weights(response_lengths: Tensor, normalization: Normalization) -> Tensor:
    """Compute u of each token; `response_lengths` holds for each the response tokens of its whole episode."""
    if normalization == "sequence_mean":
        return 1.0 / response_lengths
    return torch.ones_like(response_lengths)


def denominator(tokens: int, episodes: int, normalization: Normalization, *, constant_length: int) -> float:
    """Compute N of a mini-batch with that many response tokens and episodes; never 0."""
    if normalization == "token_mean":
        return float(max(tokens, 1))
    if normalization == "sequence_mean":
        return float(max(episodes, 1))
    return float(max(episodes, 1) * constant_length)
