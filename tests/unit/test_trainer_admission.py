"""Which groups a step may use."""

import pytest

from rl_agent.trainer.admission import AdmissionRule, Verdict, Versions


@pytest.mark.parametrize(
    ("oldest", "newest", "max_staleness", "allow_mixed", "verdict"),
    [
        (5, 5, 0, False, Verdict.ADMITTED),
        (4, 4, 0, False, Verdict.TOO_STALE),
        (4, 4, 1, False, Verdict.ADMITTED),
        (3, 3, 1, True, Verdict.TOO_STALE),
        (4, 5, 1, True, Verdict.ADMITTED),
        (4, 5, 1, False, Verdict.MIXED_VERSIONS),
        (4, 5, 0, True, Verdict.TOO_STALE),
        (6, 6, 9, True, Verdict.NOT_PUBLISHED),
        (5, 6, 9, True, Verdict.NOT_PUBLISHED),
    ],
)
def test_a_step_from_version_5_judges_by_the_oldest_token(
    oldest, newest, max_staleness, allow_mixed, verdict
):
    rule = AdmissionRule(max_staleness, allow_mixed)
    assert rule.judge([Versions(oldest, newest)], 5) is verdict


def test_one_stale_episode_turns_its_whole_group_away():
    rule = AdmissionRule(1, True)
    assert rule.judge([Versions(5, 5), Versions(3, 5)], 5) is Verdict.TOO_STALE
