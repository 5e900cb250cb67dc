"""A fleet under faults, in virtual time: no limit is passed, nothing leaks, no stranger is ended.

RL_AGENT_SCALE_SEEDS=300 plays so many instead of ten.
"""

import os
from dataclasses import replace

import pytest

from tests.support.scale_chaos import RULES, ScaleWorld
from tests.support.virtual_time import run_virtually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
SEEDS = range(int(os.environ.get("RL_AGENT_SCALE_SEEDS", "10")))


@pytest.mark.parametrize("seed", SEEDS)
def test_under_any_fault_limits_hold_and_the_wanted_fleet_is_reached(seed):
    world = ScaleWorld(seed)
    run_virtually(world.run())
    assert world.requested and len(world.happened) > 10


def test_the_histories_find_a_reconciler_that_believes_every_list_at_once():
    hasty = replace(RULES, settle_s=0.0)
    with pytest.raises(AssertionError, match=r"above|leaked"):
        for seed in range(20):
            run_virtually(ScaleWorld(seed, hasty).run())
