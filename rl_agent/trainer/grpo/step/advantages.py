"""Computes advantages: how much better an episode was than its siblings, from the group's rewards alone.

With the rewards r_1 … r_G of the episodes of one group that have a reward:

    grpo       A_i = (r_i − mean(r)) / (std(r) + 1e-6)      Shao et al. 2024 (DeepSeekMath)
    dr_grpo    A_i = r_i − mean(r)                          Liu et al. 2025 (Dr. GRPO)
    rloo       A_i = r_i − mean(r_j, j ≠ i)                 Ahmadian et al. 2024 (Back to Basics)
    reinforce  A_i = r_i                                    Williams 1992

Several rewards, each compared by itself, with weights w_k (Liu et al. 2026, GDPO, eq. 4 to 7):

    A_i = Σ_k w_k A_ik,  A_ik of the k-th rewards as above; divided by the deviation of A over the whole
    mini-batch, whose mean is 0. That is a factor of the gradient, which `UpdateStep.finish` divides.

`std` has G − 1 in its denominator. No estimator looks beyond the group, so an advantage is final as soon as
the group is; a baseline or a scale over the whole mini-batch is not offered, because a streamed mini-batch is
not known while its first groups are trained on. An episode without a sibling to be compared with has the
advantage 0 under every estimator that compares.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rl_agent.config.sections.grpo import Estimator
from rl_agent.rollout.comparison import ComparedEpisode, Comparison

STD_EPSILON = 1e-6
"""Keeps a group of equal rewards finite."""
Floats = NDArray[np.float64]


def episode_advantages(
    episodes: Sequence[ComparedEpisode], comparison: Comparison, kl: Floats | float = 0.0
) -> list[float]:
    """Compute the advantages of one group's episodes; `kl` is what the reward has of it, per episode."""
    *named, (weight, rest) = comparison.parts(episodes)
    penalized = penalized_rewards(np.array(rest), kl, comparison.loss.kl_coefficient)
    parts = [*((of_name, np.array(values)) for of_name, values in named), (weight, penalized)]
    return [float(advantage) for advantage in combined_advantages(parts, comparison.loss.advantage)]


def group_advantages(rewards: Floats, estimator: Estimator) -> Floats:
    """Compute the advantages of the episodes of one group, in their order; `rewards` has one dimension."""
    if estimator == "reinforce":
        return rewards.copy()
    if len(rewards) < 2:
        return np.zeros_like(rewards)
    centered = rewards - float(rewards.mean())
    if estimator == "dr_grpo":
        return centered
    if estimator == "rloo":
        return centered * len(rewards) / (len(rewards) - 1)
    return centered / (float(rewards.std(ddof=1)) + STD_EPSILON)


def combined_advantages(parts: Iterable[tuple[float, Floats]], estimator: Estimator) -> Floats:
    """Compute Σ_k w_k A_ik of one group from the weight and the rewards of each part."""
    with np.errstate(invalid="ignore"):  # of a reward that is not finite: the step is skipped
        total: Floats = np.sum([weight * group_advantages(part, estimator) for weight, part in parts], axis=0)
    return total


def penalized_rewards(rewards: Floats, kl: Floats | float, coefficient: float) -> Floats:
    """Put the KL in the reward: r_i − β Σ_t KL_t; `kl` is summed over the response tokens of an episode.

    Ouyang et al. 2022 (InstructGPT). The advantages are taken from what this returns.
    """
    return rewards - coefficient * kl
