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


def test_a_reward_that_rounds_to_the_threshold_is_a_success():
    metrics = RolloutMetrics("train", success_reward=0.8)
    metrics.add(make_trajectory(0, reward=0.7 + 0.1))
    metrics.add(make_trajectory(1, reward=0.79))

    assert metrics.numbers()["train/success_rate"] == 0.5


def test_the_spread_of_large_rewards_does_not_cancel():
    numbers = numbers_of(*(make_trajectory(n, reward=1e9 + n % 2) for n in range(4)))

    assert (numbers["train/reward_mean"], numbers["train/reward_std"]) == (1e9 + 0.5, 0.5)


def test_a_named_reward_is_a_mean_over_the_episodes_that_have_it():
    named = ({"format": 1.0, "brevity": -3.0}, {"format": 0.5}, {})
    numbers = numbers_of(*(replace(make_trajectory(n), rewards=rewards) for n, rewards in enumerate(named)))

    assert (numbers["train/reward/format"], numbers["train/reward/brevity"]) == (0.75, -3.0)


def test_an_attempt_without_a_reward_is_one_that_solves_nothing():
    metrics = RolloutMetrics("test", success_reward=1.0)
    for attempt, reward in enumerate([1.0, None]):
        status = Status.FAILED if reward is None else Status.COMPLETED
        made = make_trajectory(0, reward=reward, status=status)
        metrics.add(replace(made, key=replace(made.key, attempt=attempt)))

    assert metrics.outcomes() == {"": {"2/1": 1}}
    assert metrics.numbers()["test/pass@1"] == 0.5


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


def attempt(task, group, reward, *, attempt=0, split="train", test_set=None):
    made = make_trajectory(task, reward=reward, split=split)
    named = {} if test_set is None else {"test_set": test_set}
    key = replace(made.key, group=group, attempt=attempt)
    return replace(made, key=key, task=replace(made.task, extra=named))


def evaluated(*trajectories):
    metrics = RolloutMetrics("test", success_reward=1.0)
    for trajectory in trajectories:
        metrics.add(trajectory)
    return metrics


def test_the_spread_of_rewards_is_their_standard_deviation():
    assert numbers_of(attempt(0, 0, 1.0), attempt(1, 0, 0.0))["train/reward_std"] == pytest.approx(0.5)
    assert numbers_of(attempt(0, 0, 0.1), attempt(1, 0, 0.1))["train/reward_std"] == pytest.approx(
        0.0, abs=1e-8
    )


def test_groups_of_equal_rewards_are_a_share_of_the_comparable_ones():
    numbers = numbers_of(
        attempt(0, 0, 1.0, attempt=0),
        attempt(0, 0, 1.0, attempt=1),
        attempt(1, 0, 1.0, attempt=0),
        attempt(1, 0, 0.0, attempt=1),
        attempt(2, 0, 1.0),  # one sibling alone: nothing to compare
    )
    assert numbers["train/zero_std_groups_share"] == 0.5
    assert "train/zero_std_groups_share" not in numbers_of(attempt(2, 0, 1.0))


def test_an_evaluation_with_several_attempts_has_pass_at_k_by_test_set():
    found = evaluated(
        attempt(0, 0, 1.0, split="test", test_set="sums"),
        attempt(0, 1, 0.0, split="test", test_set="sums"),
        attempt(1, 0, 0.0, split="test", test_set="hard/sums"),
        attempt(1, 1, 0.0, split="test", test_set="hard/sums"),
    )
    numbers = found.numbers()
    assert (numbers["test/pass@1"], numbers["test/pass@2"], numbers["test/avg@2"]) == (0.25, 0.5, 0.25)
    assert (numbers["test/set/sums/pass@2"], numbers["test/set/hard_sums/pass@2"]) == (1.0, 0.0)
    assert found.outcomes() == {"": {"2/0": 1, "2/1": 1}, "hard_sums": {"2/0": 1}, "sums": {"2/1": 1}}


def test_a_file_with_a_test_set_for_each_task_does_not_fill_the_metrics():
    found = evaluated(*(attempt(n, 0, 1.0, split="test", test_set=f"set {n}") for n in range(200)))
    assert len(found.outcomes()) == 51
    assert found.outcomes()[""] == {"1/1": 200}


def test_a_rollout_for_training_has_no_outcomes():
    metrics = RolloutMetrics("train", success_reward=1.0)
    metrics.add(make_trajectory(0))
    assert metrics.outcomes() == {}
