"""Overlong responses against DAPO's equation, and what teaches against the advantages it would have."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rl_agent.rollout.comparison import Comparison
from rl_agent.trainer.grpo.step.advantages import group_advantages
from tests.integration.trainer.settings import loss_settings


@dataclass(frozen=True)
class Episode:
    reward: float
    longest_response: int = 10
    is_cut: bool = False
    rewards: Mapping[str, float] = field(default_factory=dict)


def length_reward(length: int, longest: int, cache: int) -> float:
    """Yu et al. 2025, equation 13."""
    if length <= longest - cache:
        return 0.0
    if length <= longest:
        return ((longest - cache) - length) / cache
    return -1.0


@pytest.mark.parametrize(("longest", "cache"), [(20_480, 4_096), (64, 63), (10, 1)])
def test_the_penalty_is_that_of_dapo(longest, cache):
    settings = {"overlong": "penalty", "longest_response": longest, "overlong_cache": cache}
    whole, half = (Comparison(loss_settings(**settings, overlong_penalty=factor)) for factor in (1.0, 0.5))
    edges = {0, 1, *(edge + n for edge in (longest - cache, longest) for n in (-1, 0, 1))}
    for length in edges | set(range(0, longest, max(longest // 50, 1))):
        expected = length_reward(length, longest, cache)
        assert whole.reward(Episode(1.0, length)) == pytest.approx(1.0 + expected)
        assert half.reward(Episode(-1.0, length)) == pytest.approx(-1.0 + expected / 2)
        assert Comparison(loss_settings()).reward(Episode(1.0, length)) == 1.0


def test_without_a_cache_it_grows_over_the_last_fifth():
    comparison = Comparison(loss_settings(overlong="penalty", longest_response=20_480))
    assert comparison.penalty(Episode(0.0, 16_384)) == 0
    assert comparison.penalty(Episode(0.0, 18_432)) == 0.5
    with pytest.raises(ValidationError, match="overlong_cache must be below longest_response, 64 tokens"):
        loss_settings(overlong="penalty", overlong_cache=64)


def test_only_episodes_with_a_response_that_was_cut_off_are_masked():
    long, cut = Episode(1.0, 64), Episode(1.0, 30, is_cut=True)  # the context was full before
    masking = Comparison(loss_settings(overlong="mask"))
    assert (masking.is_masked(long), masking.is_masked(cut)) == (False, True)
    assert not any(Comparison(loss_settings()).is_masked(episode) for episode in (long, cut))


EPISODES = st.builds(
    Episode, st.sampled_from([0.0, 0.1, 0.5, 1.0, -1.0]), st.sampled_from([10, 60, 64]), st.booleans()
)


@given(
    episodes=st.lists(EPISODES, max_size=5),
    advantage=st.sampled_from(["grpo", "dr_grpo", "rloo", "reinforce"]),
    overlong=st.sampled_from(["keep", "mask", "penalty"]),
)
def test_a_group_teaches_if_one_that_is_trained_on_has_an_advantage(episodes, advantage, overlong):
    comparison = Comparison(loss_settings(advantage=advantage, overlong=overlong, overlong_cache=8))
    rewards = np.array([comparison.reward(episode) for episode in episodes], np.float64)
    advantages = group_advantages(rewards, advantage).tolist()
    trained = [
        a for a, episode in zip(advantages, episodes, strict=True) if not comparison.is_masked(episode)
    ]
    assert comparison.is_informative(episodes) == any(abs(a) > 1e-9 for a in trained)


EACH = {"rewards": "each", "reward_weights": {"format": 0.5, "unused": 0.0}}
CANCELLING = [
    Episode(1.0, rewards={"answer": 1.0, "format": 0.0}),
    Episode(1.0, rewards={"answer": 0.5, "format": 1.0}),
]
"""Siblings whose weighted sums are equal and whose named rewards are not."""


def test_named_rewards_are_parts_with_their_weights_and_a_rest():
    longer = Episode(1.75, 60, rewards={"answer": 1.0, "format": 1.0})  # 0.25 of it has no name
    loss = loss_settings(**EACH, overlong="penalty", overlong_cache=8)  # 0.5 off for 60 of 64 tokens
    assert Comparison(loss).parts([CANCELLING[0], longer]) == [
        (1.0, [1.0, 1.0]),
        (0.5, [0.0, 1.0]),
        (1.0, [0.0, pytest.approx(-0.25)]),
    ]
    assert Comparison(loss_settings()).parts(CANCELLING) == [(1.0, [1.0, 1.0])]


@pytest.mark.parametrize(
    ("loss", "episodes", "teaches"),
    [
        ({}, [Episode(1.0), Episode(1.0)], False),
        ({}, [Episode(1.0)], False),
        ({}, [], False),
        ({"advantage": "reinforce"}, [Episode(1.0), Episode(1.0)], True),
        ({"advantage": "reinforce"}, [Episode(0.0), Episode(0.0)], False),
        ({"advantage": "reinforce"}, [Episode(1.0)], True),
        ({"overlong": "penalty"}, [Episode(1.0), Episode(1.0, 64)], True),
        ({"overlong": "penalty", "overlong_penalty": 0.0}, [Episode(1.0), Episode(1.0, 64)], False),
        ({"overlong": "mask"}, [Episode(1.0), Episode(0.0, 64, True)], True),
        ({"overlong": "mask"}, [Episode(1.0, 64, True), Episode(0.0, 64, True)], False),
        ({}, [Episode(0.1), Episode(0.1), Episode(0.1)], False),
        ({}, CANCELLING, False),
        (EACH, CANCELLING, True),
        (EACH, CANCELLING[:1] * 2, False),
        (EACH, [Episode(1.0, rewards={"unused": 1.0}), Episode(1.0, rewards={"unused": 0.0})], False),
        (EACH, [Episode(1.0), Episode(0.0)], True),
    ],
)
def test_a_groups_lesson_is_judged_by_its_training_steps(loss, episodes, teaches):
    assert Comparison(loss_settings(**loss)).is_informative(episodes) == teaches
