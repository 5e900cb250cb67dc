"""Machines that are rented and lost in virtual time."""

from dataclasses import replace

import pytest

from rl_agent.simulation.config import read_config, scenario_of
from rl_agent.simulation.scenario import Scenario, simulate
from rl_agent.simulation.spot import Change
from rl_agent.testing.pool_setup import later_wins

SMALL = (
    "prompts=8", "group_size=4", "mean_tokens=1500", "longest=4096", "trainer_gpus=2", "engine_gpus=1",
    "trainer_price=20", "engine_price=2", "on_demand_price=8", "max_running=16", "switch_s=5",
    "engine_start_s=20", "resolution_s=2",
)  # fmt: skip


ALWAYS_TWO = [Change(0.0, is_join=True), Change(0.0, is_join=True)]


def scenario(trace=ALWAYS_TWO, *words: str, hours: float = 0.25) -> Scenario:
    return scenario_of(read_config(later_wins((*SMALL, f"hours={hours}", *words))), trace, "trace")


def kills(*, hours: float, every_s: float) -> list[Change]:
    """Two machines, of which the older one vanishes and another comes in its place."""
    changes = list(ALWAYS_TWO)
    for number in range(1, int(hours * 3600 / every_s)):
        changes += [Change(number * every_s, is_join=False), Change(number * every_s, is_join=True)]
    return changes


def test_a_notice_saves_what_a_sudden_end_loses():
    sudden = kills(hours=0.25, every_s=60)
    told = [replace(change, with_notice=True) for change in sudden]
    assert (
        simulate(scenario(told), "elastic").lost_tokens <= simulate(scenario(sudden), "elastic").lost_tokens
    )
    assert simulate(scenario(told), "elastic").engine_deaths == 0


def test_machines_are_paid_from_their_first_moment_to_their_last():
    trace = [Change(0.0, is_join=True), Change(300.0, is_join=True), Change(600.0, is_join=False)]
    found = simulate(scenario(trace, "trainer_price=0", "engine_price=3600"), "elastic")
    end_s = found.hours * 3600
    machine_s = min(600.0, end_s) + end_s - 300.0
    assert found.cost_per_step * found.iterations == pytest.approx(machine_s)
