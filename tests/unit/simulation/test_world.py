"""Machines that are rented and lost in virtual time."""

from dataclasses import replace

import pytest

from rl_agent.simulation.scenario import simulate
from rl_agent.simulation.spot import Change
from tests.unit.simulation.scenarios import kills, scenario


def test_a_notice_saves_what_a_sudden_end_loses():
    sudden = kills(hours=0.25, every_s=60)
    told = [replace(change, with_notice=True) for change in sudden]
    assert (
        simulate(scenario(told), "elastic").lost_tokens <= simulate(scenario(sudden), "elastic").lost_tokens
    )
    assert simulate(scenario(told), "elastic").engine_deaths == 0


def test_machines_are_paid_from_their_first_moment_to_their_last():
    trace = [Change(0.0, is_join=True), Change(300.0, is_join=True), Change(600.0, is_join=False)]
    outcome = simulate(scenario(trace, "trainer_price=0", "engine_price=3600"), "elastic")
    end_s = outcome.hours * 3600
    machine_s = min(600.0, end_s) + end_s - 300.0
    assert outcome.cost_per_step * outcome.iterations == pytest.approx(machine_s)
