"""Which groups a step may use, and how many may be under way."""

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


def simulate(max_staleness: int, *, steps: int, groups_per_step: int) -> list[int]:
    """Staleness of every trained group if groups are begun as early as allowed and trained on in order."""
    rule = AdmissionRule(max_staleness, False)
    begun: list[int] = []
    staleness = []
    for version in range(steps):
        begun += [version] * rule.may_submit(len(begun), version, groups_per_step=groups_per_step)
        batch = begun[version * groups_per_step : (version + 1) * groups_per_step]
        assert len(batch) == groups_per_step
        assert {rule.judge([Versions(v, v)], version) for v in batch} == {Verdict.ADMITTED}
        staleness += [version - v for v in batch]
    return staleness


def test_zero_staleness_is_synchronous_training():
    assert set(simulate(0, steps=4, groups_per_step=3)) == {0}


@pytest.mark.parametrize("max_staleness", [1, 2, 5])
def test_the_allowed_lead_is_used_up_and_never_exceeded(max_staleness):
    assert max(simulate(max_staleness, steps=9, groups_per_step=3)) == max_staleness


def test_a_group_that_was_turned_away_leaves_room_for_another():
    rule = AdmissionRule(0, False)
    assert rule.may_submit(3, 0, groups_per_step=4) == 1
    assert rule.may_submit(9, 0, groups_per_step=4) == 0
