import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.rollout.collector.metrics import Durations, RolloutMetrics
from rl_agent.types import Status
from tests.unit.rollout.trajectories_made import make_step, make_trajectory


def metrics_of(*trajectories, split="train", success_reward=1.0):
    metrics = RolloutMetrics(split, success_reward=success_reward)
    for trajectory in trajectories:
        metrics.add(trajectory)
    return metrics


def numbers_of(*trajectories, **settings):
    return metrics_of(*trajectories, **settings).numbers()


def test_success_is_a_share_of_the_episodes_that_have_a_reward():
    statuses = (Status.COMPLETED, Status.COMPLETED, Status.FAILED, Status.TIMED_OUT)
    numbers = numbers_of(
        *(make_trajectory(n, reward=1 - n / 2, status=status) for n, status in enumerate(statuses))
    )
    assert numbers["train/success_rate"] == 0.5
    assert numbers["train/reward_mean"] == 0.75
    assert numbers["train/episodes"] == 4
    shares = ("completed", "failed", "timed_out", "abandoned")
    assert [numbers[f"train/{name}_share"] for name in shares] == [0.5, 0.25, 0.25, 0.0]


def test_a_reward_that_rounds_to_the_threshold_is_a_success():
    episodes = make_trajectory(0, reward=0.7 + 0.1), make_trajectory(1, reward=0.79)
    assert numbers_of(*episodes, success_reward=0.8)["train/success_rate"] == 0.5


def test_a_named_reward_is_a_mean_over_the_episodes_that_have_it():
    named = ({"format": 1.0, "brevity": -3.0}, {"format": 0.5}, {})
    numbers = numbers_of(*(replace(make_trajectory(n), rewards=rewards) for n, rewards in enumerate(named)))

    assert (numbers["train/reward/format"], numbers["train/reward/brevity"]) == (0.75, -3.0)


def test_an_attempt_without_a_reward_is_one_that_solves_nothing():
    failed = make_trajectory(attempt=1, status=Status.FAILED)
    metrics = metrics_of(make_trajectory(), failed, split="test")
    assert metrics.outcomes() == {"": {"2/1": 1}}
    assert metrics.numbers()["test/pass@1"] == 0.5


def test_without_a_single_reward_no_success_rate_is_claimed():
    numbers = numbers_of(make_trajectory(status=Status.FAILED))
    assert "train/success_rate" not in numbers
    assert numbers["train/failed_share"] == 1.0


def test_each_difficulty_has_its_own_numbers():
    rewards = {"easy": 1.0, "hard": 0.0}
    episodes = (make_trajectory(difficulty=name, reward=reward) for name, reward in rewards.items())
    numbers = numbers_of(*episodes)
    assert {name: numbers[f"train/{name}/success_rate"] for name in rewards} == rewards


def test_failures_are_counted_by_kind():
    failed = make_trajectory(status=Status.FAILED)
    assert numbers_of(failed, failed)[f"train/failures/{failed.failure.kind}"] == 2


def test_tokens_steps_and_cut_responses_are_counted_over_steps():
    steps = (make_step("abc"), make_step("abcde", finish_reason="length"))
    numbers = numbers_of(make_trajectory(0, steps=steps), make_trajectory(1, steps=(make_step("a"),)))

    assert numbers["train/steps_mean"] == 1.5
    assert numbers["train/response_tokens"] == 9
    assert numbers["train/prompt_tokens"] == 3 * len(make_step("a").prompt_token_ids)
    assert numbers["train/response_tokens_mean"] == 3.0
    assert numbers["train/cut_responses_share"] == pytest.approx(1 / 3)


def test_the_judges_cost_is_summed_over_its_verdicts():
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


@pytest.mark.parametrize(
    ("rewards", "mean", "spread"),
    [([1.0, 0.0], 0.5, 0.5), ([0.1, 0.1], 0.1, 0.0), ([1e9, 1e9 + 1] * 2, 1e9 + 0.5, 0.5)],
    ids=["apart", "equal", "large"],
)
def test_the_spread_of_rewards_is_their_standard_deviation(rewards, mean, spread):
    numbers = numbers_of(*(make_trajectory(n, reward=reward) for n, reward in enumerate(rewards)))
    assert numbers["train/reward_mean"] == mean
    assert numbers["train/reward_std"] == pytest.approx(spread, abs=1e-8)


def test_groups_of_equal_rewards_are_a_share_of_the_comparable_ones():
    alone = make_trajectory(2)  # nothing to compare
    rewards = [(0, 0, 1.0), (0, 1, 1.0), (1, 0, 1.0), (1, 1, 0.0)]
    episodes = [make_trajectory(task, attempt=attempt, reward=reward) for task, attempt, reward in rewards]
    assert numbers_of(*episodes, alone)["train/zero_std_groups_share"] == 0.5
    assert "train/zero_std_groups_share" not in numbers_of(alone)


def test_an_evaluation_with_several_attempts_has_pass_at_k_by_test_set():
    rewards = {"sums": (1.0, 0.0), "hard/sums": (0.0, 0.0)}
    metrics = metrics_of(
        *(
            make_trajectory(task, group=group, reward=reward, extra={"test_set": name})
            for task, (name, attempts) in enumerate(rewards.items())
            for group, reward in enumerate(attempts)
        ),
        split="test",
    )
    numbers = metrics.numbers()
    assert (numbers["test/pass@1"], numbers["test/pass@2"], numbers["test/avg@2"]) == (0.25, 0.5, 0.25)
    assert (numbers["test/set/sums/pass@2"], numbers["test/set/hard_sums/pass@2"]) == (1.0, 0.0)
    assert metrics.outcomes() == {"": {"2/0": 1, "2/1": 1}, "hard_sums": {"2/0": 1}, "sums": {"2/1": 1}}


def test_a_rollout_for_training_has_no_outcomes():
    assert metrics_of(make_trajectory(0)).outcomes() == {}
