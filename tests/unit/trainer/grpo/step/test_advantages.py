"""Advantages are those of the written equations."""

import statistics

import numpy as np
import pytest

from rl_agent.trainer.grpo.step.advantages import combined_advantages, group_advantages, penalized_rewards

REWARDS = [1.0, 0.0, 0.0, 0.5, 1.0]


def array(values) -> np.ndarray:
    return np.array(values, np.float64)


def plain_advantages(rewards: list[float], estimator: str) -> list[float]:
    mean = statistics.fmean(rewards)
    if estimator == "grpo":
        return [(r - mean) / (statistics.stdev(rewards) + 1e-6) for r in rewards]
    if estimator == "dr_grpo":
        return [r - mean for r in rewards]
    if estimator == "rloo":
        others = [rewards[:i] + rewards[i + 1 :] for i in range(len(rewards))]
        return [r - statistics.fmean(o) for r, o in zip(rewards, others, strict=True)]
    return rewards


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo", "reinforce"])
def test_advantages_equal_those_of_the_written_equation(estimator):
    assert group_advantages(array(REWARDS), estimator).tolist() == pytest.approx(
        plain_advantages(REWARDS, estimator), abs=1e-12
    )


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo"])
@pytest.mark.parametrize("rewards", [[1.0], [1.0, 1.0, 1.0], []])
def test_a_group_with_nothing_to_compare_moves_nothing(estimator, rewards):
    assert group_advantages(array(rewards), estimator).tolist() == [0.0] * len(rewards)


def test_kl_in_the_reward_lowers_the_advantage_of_the_episode_that_strayed():
    rewards = penalized_rewards(array([1.0, 1.0]), array([0.0, 4.0]), 0.1)
    assert rewards.tolist() == pytest.approx([1.0, 0.6])
    assert group_advantages(rewards, "dr_grpo").tolist() == pytest.approx([0.2, -0.2])


def test_each_rewards_advantages_are_weighted_as_gdpo_has_it():
    """Liu et al. 2026 (GDPO), eq. 4, 5 and 7."""
    answer, form = [1.0, 0.0, 0.0, 1.0], [0.0, 2.0, 0.0, 2.0]
    parts = [(1.0, array(answer)), (0.5, array(form))]
    per_reward = [plain_advantages(rewards, "grpo") for rewards in (answer, form)]
    expected = [a + 0.5 * f for a, f in zip(*per_reward, strict=True)]
    assert combined_advantages(parts, "grpo").tolist() == pytest.approx(expected, abs=1e-12)


def test_a_reward_alone_has_its_own_advantages():
    advantages = combined_advantages([(1.0, array(REWARDS))], "grpo")
    assert advantages.tolist() == group_advantages(array(REWARDS), "grpo").tolist()
