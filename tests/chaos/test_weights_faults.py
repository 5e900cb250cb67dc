"""Whatever happens to a transfer, what is served stays right, and the next try succeeds.

RL_AGENT_WEIGHTS_FAULTS=260 makes so many runs instead of those in the middle of a transfer, from
RL_AGENT_WEIGHTS_FAULTS_FROM on. `python -m tests.chaos.weights_faults` makes 260 and counts what happened.
"""

import os

import pytest

from tests.chaos.weights_faults import CELLS, FAULTS, POINTS, Case, Stage, run_in_a_folder

pytestmark = [pytest.mark.extended, pytest.mark.chaos, pytest.mark.timeout(120)]

MIDDLE = range(POINTS.index(0.5), 2 * CELLS, len(POINTS))
FIRST = int(os.environ.get("RL_AGENT_WEIGHTS_FAULTS_FROM", "0"))
COUNT = int(os.environ.get("RL_AGENT_WEIGHTS_FAULTS", "0"))


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    return Stage(tmp_path_factory.mktemp("sender"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT) if COUNT else MIDDLE)
def test_a_fault_is_got_over_or_told_and_nothing_wrong_is_served(stage, seed):
    assert run_in_a_folder(stage, seed).looks > 0


def test_the_seeds_of_a_campaign_cover_every_fault_at_every_point():
    cases = [Case.of(seed) for seed in range(4 * CELLS)]
    ways = {(case.fault, case.point, case.by_delta, case.in_memory) for case in cases}
    assert len(ways) == 4 * len(FAULTS) * len(POINTS) == len(cases)
