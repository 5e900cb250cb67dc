"""Engines on the trainer's own devices: they generate while the trainer does not train."""

from rl_agent.simulation.scenario import simulate
from tests.unit.simulation.scenarios import ALWAYS_TWO, scenario


def test_devices_that_take_turns_shorten_the_wait_for_few_machines():
    alone, shared = (simulate(scenario(hours=0.5), setup) for setup in ("elastic", "elastic_hybrid"))
    assert shared.waiting_share < alone.waiting_share
    assert shared.tokens_per_s > alone.tokens_per_s


def test_each_turn_costs_the_switch_there_and_back():
    quick, slow = (
        simulate(scenario(ALWAYS_TWO, f"switch_s={seconds}"), "elastic_hybrid") for seconds in (1, 120)
    )
    assert quick.iterations > slow.iterations
