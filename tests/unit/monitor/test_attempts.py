"""pass@k is the unbiased estimate, and an interval contains what it should."""

import itertools
import random

import pytest

from rl_agent.monitor.attempts import estimates_of, numbers_of, outcomes_of, pass_at_k, values_of


@pytest.mark.parametrize(("attempts", "solved"), [(1, 0), (4, 0), (4, 1), (5, 3), (6, 6)])
def test_pass_at_k_is_the_share_of_k_attempts_with_a_success(attempts, solved):
    tries = [True] * solved + [False] * (attempts - solved)
    for k in range(1, attempts + 1):
        choices = list(itertools.combinations(tries, k))
        assert pass_at_k(attempts, solved, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_measures_are_averaged_over_tasks_that_have_enough_attempts():
    outcomes = outcomes_of({"a": (4, 1), "b": (4, 4), "c": (2, 0)})
    assert outcomes == {"2/0": 1, "4/1": 1, "4/4": 1}
    numbers = numbers_of(outcomes)
    assert numbers == pytest.approx(
        {
            "pass@1": (0 + 0.25 + 1) / 3,
            "pass@2": (0 + 0.5 + 1) / 3,
            "pass@4": 1.0,
            "avg@4": (0.25 + 1 + 0) / 3,
        }
    )


def test_nothing_is_estimated_from_nothing():
    assert numbers_of({}) == {}
    assert estimates_of({}) == []


def test_one_attempt_a_task_has_wilsons_interval():
    (pass_1,) = estimates_of({"1/0": 90, "1/1": 10})
    assert pass_1.value == 0.1
    assert pass_1.interval == pytest.approx((0.0552, 0.1744), abs=1e-4)  # Wilson 1927, worked by hand


def test_no_success_at_all_still_has_an_interval_above_zero():
    for estimate in estimates_of({"4/0": 20}):
        assert estimate.value == 0.0
        assert estimate.interval[0] == 0.0 < estimate.interval[1] < 0.2


@pytest.mark.parametrize("tasks", [5, 10, 80])
def test_intervals_over_tasks_contain_the_truth_about_as_often_as_they_say(tasks):
    source = random.Random(0)
    hits, trials = 0, 400
    for _ in range(trials):
        chances = [source.random() for _ in range(tasks)]  # of a task: the mean over all tasks is 0.5
        tried = {
            str(n): (4, sum(source.random() < chance for _ in range(4))) for n, chance in enumerate(chances)
        }
        interval = next(
            estimate.interval for estimate in estimates_of(outcomes_of(tried)) if estimate.name == "avg@4"
        )
        hits += interval[0] <= 0.5 <= interval[1]
    assert 0.93 * trials <= hits


def test_values_are_one_a_task():
    assert len(values_of({"8/3": 5, "8/0": 2})["pass@8"]) == 7
