"""The pool and a trainer in virtual time: what they do is what their speeds and the trace say."""

import pytest

from rl_agent.simulation.config import read_config, scenario_of
from rl_agent.simulation.scenario import SETUPS, Scenario, simulate
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


@pytest.mark.parametrize("setup", SETUPS)
def test_the_same_seed_gives_the_same_outcome_and_another_seed_another(setup):
    trace = kills(hours=0.25, every_s=120)
    first = simulate(scenario(trace), setup)
    assert first.iterations > 2
    assert simulate(scenario(trace), setup) == first
    assert simulate(scenario(trace, "seed=1"), setup) != first


def test_taking_turns_costs_generation_then_training_then_publishing():
    one = scenario()
    found = simulate(one, "static")
    tokens = sum(one.work.lengths(1)) + 32 * one.work.prompt_tokens
    of_training = one.trainer.seconds_for([(length + 512, length) for length in one.work.lengths(1)])
    at_least = 2 * one.trainer.switch_s + of_training + one.trainer.update_s + one.trainer.publish_s
    step_s = found.hours * 3600 / found.iterations
    assert step_s > at_least
    assert found.tokens_per_s * step_s == pytest.approx(tokens, rel=0.15)
    assert found.cost_per_step == pytest.approx(20 * step_s / 3600)
    assert found.engines == 0


def test_every_token_is_trained_on_once_whatever_happens_to_the_machines():
    for setup in ("elastic", "elastic_recompute"):
        one = scenario(kills(hours=0.25, every_s=60))
        found = simulate(one, setup)
        asked = sum(
            512 + 32 * max(1, round(length / 32))
            for iteration in range(1, found.iterations + 1)
            for length in one.work.lengths(iteration)
        )
        assert found.tokens_per_s * found.hours * 3600 == pytest.approx(asked)
        assert found.engine_deaths > 5


def test_moving_requests_with_their_tokens_loses_less_than_computing_them_again():
    one = scenario(kills(hours=0.5, every_s=37), hours=0.5)
    moved, computed_again = simulate(one, "elastic"), simulate(one, "elastic_recompute")
    assert moved.lost_share < 0.02 < computed_again.lost_share
    assert moved.iterations > computed_again.iterations
    assert moved.prefilled_again_tokens > computed_again.prefilled_again_tokens
