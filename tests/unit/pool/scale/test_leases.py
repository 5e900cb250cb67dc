"""Whose a fleet is, and which kinds cannot be had."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.pool.scale.demand import Scarce
from rl_agent.pool.scale.leases import MOST_FLEETS, FailedStarts, FleetLeases, Lease


def asked(holder, until=60.0, **failed):
    return Lease(holder, until, {kind: FailedStarts(*one) for kind, one in failed.items()})


def test_a_copy_gets_the_fleet_only_once_the_lease_is_over_and_a_restart_at_once():
    leases = FleetLeases()
    assert leases.hold("rl-1", asked("a:/state"), 0.0).holder == "a:/state"
    assert leases.hold("rl-1", asked("b:/copy"), 59.0).holder == "a:/state"
    assert leases.hold("rl-1", asked("a:/state", 119.0), 59.0).until == 119.0
    assert leases.hold("rl-2", asked("b:/copy"), 59.0).holder == "b:/copy"
    assert leases.hold("rl-1", asked("b:/copy", 200.0), 119.0).holder == "b:/copy"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 50), st.floats(0, 90)), max_size=30))
def test_a_fleet_has_one_holder_until_its_lease_ends(calls):
    leases, now, last = FleetLeases(), 0.0, None
    for holder, later, lasts in calls:
        now += later
        found = leases.hold("f", Lease(holder, now + lasts, {}), now)
        if last is not None and last.until > now:
            assert found.holder == last.holder
        else:
            assert found.holder == holder
        last = found


def test_fleets_are_bounded():
    leases = FleetLeases()
    for number in range(2 * MOST_FLEETS):
        leases.hold(f"f-{number}", asked("a", spot=(9, 10.0)), 0.0)
    assert len(leases._leases) == MOST_FLEETS


@pytest.mark.parametrize(
    ("failed", "now", "scarce"),
    [
        ({"spot": (1, 50.0)}, 0.0, {}),
        ({"spot": (2, 50.0)}, 0.0, {"spot": Scarce(50.0)}),
        ({"spot": (2, 50.0, 3, 1)}, 50.0, {"spot": Scarce(0.0, 3, 1)}),
        ({"spot": (2, 50.0)}, 60.0, {}),  # nobody has reported since
        ({}, 0.0, {}),
    ],
)
def test_a_kind_is_scarce_once_starts_keep_failing_and_as_long_as_somebody_says_so(failed, now, scarce):
    leases = FleetLeases()
    leases.hold("f", asked("a", **failed), 0.0)
    assert leases.scarce(now) == scarce
