"""Groups that a step may use."""

import pytest

from rl_agent.trainer.grpo.data.samples import Versions
from rl_agent.trainer.grpo.data.staleness import AdmissionRule, AdmissionVerdict, Lineage


@pytest.mark.parametrize(
    ("oldest", "newest", "max_staleness", "allow_mixed", "verdict"),
    [
        (5, 5, 0, False, AdmissionVerdict.ADMITTED),
        (4, 4, 0, False, AdmissionVerdict.TOO_STALE),
        (4, 4, 1, False, AdmissionVerdict.ADMITTED),
        (3, 3, 1, True, AdmissionVerdict.TOO_STALE),
        (4, 5, 1, True, AdmissionVerdict.ADMITTED),
        (4, 5, 1, False, AdmissionVerdict.MIXED_VERSIONS),
        (4, 5, 0, True, AdmissionVerdict.TOO_STALE),
        (6, 6, 9, True, AdmissionVerdict.NOT_PUBLISHED),
        (5, 6, 9, True, AdmissionVerdict.NOT_PUBLISHED),
    ],
)
def test_a_step_from_version_5_judges_by_the_oldest_token(
    oldest, newest, max_staleness, allow_mixed, verdict
):
    rule = AdmissionRule(max_staleness, allow_mixed)
    assert rule.judge([Versions(oldest, newest)], 5) is verdict


def test_one_stale_episode_turns_its_whole_group_away():
    rule = AdmissionRule(1, True)
    assert rule.judge([Versions(5, 5), Versions(3, 5)], 5) is AdmissionVerdict.TOO_STALE


# Iteration 3 was published as version 3, lost with its trainer, and made once more as version 5.
REMADE = Lineage({1: 1, 2: 2, 3: 3, 5: 3, 6: 4})


@pytest.mark.parametrize(
    ("lineage", "sampled", "version", "age"),
    [
        (REMADE, 3, 5, 0),
        (REMADE, 2, 5, 1),
        (REMADE, 3, 6, 1),
        (REMADE, 0, 5, 3),  # before anything was published
        (REMADE, 8, 6, -2),
        (Lineage({3: 3, 9: 4}), 3, 9, 1),  # the pool knew of version 8
        (Lineage({2: 2, 3: None, 5: 3}), 3, 5, None),  # given up
        (Lineage(), 4, 6, 2),
    ],
)
def test_a_version_is_as_old_as_the_iterations_since(lineage, sampled, version, age):
    assert lineage.age(sampled, at=version) == age


def test_samples_of_a_given_up_version_are_too_old_for_any_step():
    rule = AdmissionRule(99, True, Lineage({2: 2, 3: None, 5: 3}))
    assert rule.judge([Versions(2, 3)], 5) is AdmissionVerdict.TOO_STALE
    assert rule.judge([Versions(2, 2)], 5) is AdmissionVerdict.ADMITTED
