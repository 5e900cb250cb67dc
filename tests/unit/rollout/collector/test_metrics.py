import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.rollout.collector.metrics import Durations, RolloutMetrics
from rl_agent.types import Status
from tests.unit.rollout.trajectories_made import make_step, make_trajectory


def numbers_of(*trajectories):
    metrics = RolloutMetrics("train", success_reward=1.0)
    for trajectory in trajectories:
        metrics.add(trajectory)
    return metrics.numbers()


def test_success_is_a_share_of_the_episodes_that_have_a_reward():
    numbers = numbers_of(
        make_trajectory(0, reward=1.0),
        make_trajectory(1, reward=0.5),
        make_trajectory(2, reward=None, status=Status.FAILED),
        make_trajectory(3, reward=None, status=Status.TIMED_OUT),
    )

    assert numbers["train/success_rate"] == 0.5
    assert numbers["train/reward_mean"] == 0.75
    assert numbers["train/episodes"] == 4
    shares = ("completed", "failed", "timed_out", "abandoned")
    assert [numbers[f"train/{name}_share"] for name in shares] == [0.5, 0.25, 0.25, 0.0]


def test_without_a_single_reward_no_success_rate_is_claimed():
    numbers = numbers_of(make_trajectory(reward=None, status=Status.FAILED))

    assert "train/success_rate" not in numbers
    assert numbers["train/failed_share"] == 1.0


def test_each_difficulty_has_its_own_numbers():
    numbers = numbers_of(
        make_trajectory(0, difficulty="easy", reward=1.0), make_trajectory(1, difficulty="hard", reward=0.0)
    )

    assert numbers["train/easy/success_rate"] == 1.0
    assert numbers["train/hard/success_rate"] == 0.0


def test_failures_are_counted_by_kind():
    failed = make_trajectory(reward=None, status=Status.FAILED)

    assert numbers_of(failed, failed)[f"train/failures/{failed.failure.kind}"] == 2


def test_tokens_steps_and_cut_responses_are_counted_over_steps():
    steps = (make_step("abc"), make_step("abcde", finish_reason="length"))
    numbers = numbers_of(make_trajectory(0, steps=steps), make_trajectory(1, steps=(make_step("a"),)))

    assert numbers["train/steps_mean"] == 1.5
    assert numbers["train/response_tokens"] == 9
    assert numbers["train/prompt_tokens"] == 3 * len(make_step("a").prompt_token_ids)
    assert numbers["train/response_tokens_mean"] == 3.0
    assert numbers["train/cut_responses_share"] == pytest.approx(1 / 3)


def test_what_the_judge_cost_is_summed_over_its_verdicts():
    def judged(index, is_cached, tokens):
        spent = {"prompt_tokens": tokens, "completion_tokens": 2 * tokens, "cost_usd": tokens / 1000}
        detail = {"judge_model": "j", "is_cached": is_cached, **spent}
        return replace(make_trajectory(index), reward_detail=detail)

    numbers = numbers_of(judged(0, False, 100), judged(1, True, 0), make_trajectory(2))
    assert numbers["train/judge_verdicts"] == 2
    assert numbers["train/judge_cached"] == 1
    assert numbers["train/judge_completion_tokens"] == 200
    assert numbers["train/judge_cost_usd"] == pytest.approx(0.1)
    assert not [name for name in numbers_of(make_trajectory(0)) if "judge" in name]


def test_an_empty_rollout_has_finite_numbers():
    assert all(math.isfinite(value) for value in numbers_of().values())


@given(st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_percentiles_are_at_most_a_bucket_above_the_truth(seconds, share):
    durations = Durations()
    for value in seconds:
        durations.add(value)

    truth = sorted(seconds)[math.ceil(round(share * len(seconds), 9)) - 1]
    assert truth * 0.999 <= durations.percentile(share) <= truth * 1.101


def test_no_wait_at_all_is_zero():
    durations = Durations()
    durations.add(0.0)
    assert durations.percentile(0.95) == 0.0
    assert Durations().percentile(0.5) == 0.0
