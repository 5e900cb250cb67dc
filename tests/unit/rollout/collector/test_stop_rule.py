import pytest

from rl_agent.rollout.collector.stop_rule import StopRule


@pytest.mark.parametrize(
    ("threshold", "total", "needed"),
    [
        (0.95, 20, 19),
        (0.95, 100, 95),
        (0.95, 10, 10),
        (0.98, 1024, 1004),
        (1.0, 7, 7),
        (0.5, 3, 2),
        (0.95, 0, 0),
    ],
)
def test_the_threshold_counts_whole_episodes_rounded_up(threshold, total, needed):
    assert StopRule(threshold, 30).needed(total) == needed


def test_every_decimal_threshold_is_met_by_exactly_that_share():
    for percent in range(1, 101):
        assert StopRule(percent / 100, 0).needed(100) == percent


@pytest.mark.parametrize(("done", "is_due"), [(94, False), (95, True), (100, True)])
def test_the_grace_period_begins_when_the_threshold_is_reached(done, is_due):
    assert StopRule(0.95, 30.0).is_due(done=done, total=100) == is_due
