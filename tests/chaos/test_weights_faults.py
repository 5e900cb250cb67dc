"""Whatever happens to a transfer, what is served stays right, and the next try succeeds."""

import pytest

from tests.chaos.weights_faults import FAULTS, POINTS, prepare, run, run_many

pytestmark = [pytest.mark.extended, pytest.mark.chaos]


def test_twelve_seeded_runs_under_random_faults():
    outcomes = run_many(range(12), on_outcome=print)
    assert len(outcomes) == 12


ARRIVES = {
    "cut once": True,
    "byte flipped": True,
    "slow": True,
    "cut for good": False,
    "silent": False,
    "sender stops": False,
    "receiver killed": False,
}
"""Whether the first try gets over a fault; left open where it depends on luck."""


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_in_the_middle(tmp_path, fault, monkeypatch):
    monkeypatch.setattr("tests.chaos.weights_faults.FAULTS", (fault,))
    monkeypatch.setattr("tests.chaos.weights_faults.POINTS", (POINTS[2],))
    outcome = run(prepare(tmp_path / "sender"), tmp_path, seed=3)
    assert (outcome.fault, outcome.point) == (fault, 0.5)
    assert outcome.arrived == ARRIVES.get(fault, outcome.arrived)
