"""Numbers out of their usual range are reported in words, and the others are not mentioned."""

import pytest

from rl_agent.monitor.bounds import BOUNDS, newest_warnings, warnings
from rl_agent.monitor.catalog import find
from rl_agent.monitor.report import by_iteration

SUSPICIOUS = {
    "rises while cut": ({"cut_responses_share": 0.34}, "rose to 0.600 while 34% of the responses are cut"),
    "falls while cut": ({"cut_responses_share": 0.34, "success_rate": 0.4}, None),
    "rises, fewer are cut": ({"cut_responses_share": 0.34, "cut_before": 0.5}, None),
    "rises, more are cut": ({"cut_responses_share": 0.34, "cut_before": 0.2}, "34% of the responses are cut"),
    "rises whole": ({"cut_responses_share": 0.01}, None),
    "all the same": ({"same_response_share": 0.95}, "95% of the test episodes have nearly the same response"),
    "few episodes": ({"same_response_share": 1.0, "episodes": 4}, None),
}


@pytest.mark.parametrize(("changes", "warning"), SUSPICIOUS.values(), ids=SUSPICIOUS)
def test_a_success_that_may_be_a_hole_in_the_reward_is_a_warning(changes, warning):
    row = {"episodes": 100, "success_rate": 0.6} | changes
    first = {"test/success_rate": 0.5}
    if "cut_before" in row:
        first["test/cut_responses_share"] = row.pop("cut_before")
    rows = {1: first, 2: {f"test/{key}": value for key, value in row.items()}}
    lines = warnings(rows, 2, "evaluate")
    assert lines == [] if warning is None else warning in lines[0]


STEPS = {
    "usual": ({}, None),
    "other weights": ({"trainer/logprob_difference": 2.7}, "engine and trainer differ by 2.7 nats per token"),
    "no spread": ({"train/zero_std_groups_share": 0.73}, "73% of the groups have equal rewards"),
    "clipped": ({"trainer/clip_fraction": 0.4}, "40% of the tokens are clipped"),
    "collapse": ({"trainer/entropy": 0.02}, "entropy collapsed to 0.02 nats"),
    "not finite": ({"trainer/is_skipped": 1.0}, "the gradient was not finite"),
    "few episodes": ({"trainer/logprob_difference": 2.7, "trainer/episodes": 8}, None),
}


@pytest.mark.parametrize(("changes", "warning"), STEPS.values(), ids=STEPS)
def test_numbers_of_a_step_out_of_their_range_are_reported_in_words(changes, warning):
    usual = {
        "trainer/episodes": 64,
        "trainer/entropy": 0.25,
        "trainer/logprob_difference": 0.01,
        "trainer/clip_fraction": 0.001,
        "trainer/is_skipped": 0.0,
        "train/zero_std_groups_share": 0.4,
    }
    rows = {1: usual, 2: usual | changes}
    assert warnings(rows, 1, "update") == []
    lines = newest_warnings(rows)
    assert [line.startswith(f"iteration 2: {warning}") for line in lines] == [True] * (warning is not None)


def test_a_lasting_warning_is_repeated_in_one_of_ten_iterations():
    shares = [0.2, *[0.7] * 11, 0.2, 0.7]
    rows = {
        number: {"trainer/episodes": 64, "train/zero_std_groups_share": share}
        for number, share in enumerate(shares, start=1)
    }
    reported = [number for number in rows if warnings(rows, number, "update", is_repeated=False)]
    assert reported == [2, 12, 14]
    assert [number for number in rows if warnings(rows, number, "update")] == [*range(2, 13), 14]


def test_bounds_are_of_metrics_that_the_catalog_describes():
    assert all(find(bound.name) for bounds in BOUNDS.values() for bound in bounds)


def test_the_difference_of_an_iterations_first_step_counts():
    step = {"iteration": 1, "trainer/episodes": 64}
    steps = [
        step | {"trainer/updates_since_sampling": n, "trainer/logprob_difference": difference}
        for n, difference in enumerate((0.001, 0.2, 0.4))
    ]
    assert warnings(by_iteration(steps), 1, "update") == []
    steps[0]["trainer/logprob_difference"] = 0.2
    assert "engine and trainer differ by 0.2 nats" in warnings(by_iteration(steps), 1, "update")[0]
