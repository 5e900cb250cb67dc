"""The pool and a trainer in virtual time: what they do is what their speeds and the trace say."""

import pytest

from rl_agent.simulation.scenario import SETUPS, simulate
from tests.unit.simulation.scenarios import kills, scenario


@pytest.mark.parametrize("setup", SETUPS)
def test_the_same_seed_gives_the_same_outcome_and_another_seed_another(setup):
    trace = kills(hours=0.25, every_s=120)
    first = simulate(scenario(trace), setup)
    assert first.iterations > 2
    assert simulate(scenario(trace), setup) == first
    assert simulate(scenario(trace, "seed=1"), setup) != first


def test_taking_turns_costs_generation_then_training_then_publishing():
    case = scenario()
    outcome = simulate(case, "static")
    tokens = sum(case.work.lengths(1)) + 32 * case.work.prompt_tokens
    of_training = case.trainer.seconds_for([(length + 512, length) for length in case.work.lengths(1)])
    at_least = 2 * case.trainer.switch_s + of_training + case.trainer.update_s + case.trainer.publish_s
    step_s = outcome.hours * 3600 / outcome.iterations
    assert step_s > at_least
    assert outcome.tokens_per_s * step_s == pytest.approx(tokens, rel=0.15)
    assert outcome.cost_per_step == pytest.approx(20 * step_s / 3600)
    assert outcome.engines == 0


def test_every_token_is_trained_on_once_whatever_happens_to_the_machines():
    for setup in ("elastic", "elastic_recompute"):
        case = scenario(kills(hours=0.25, every_s=60))
        outcome = simulate(case, setup)
        expected = sum(
            512 + 32 * max(1, round(length / 32))
            for iteration in range(1, outcome.iterations + 1)
            for length in case.work.lengths(iteration)
        )
        assert outcome.tokens_per_s * outcome.hours * 3600 == pytest.approx(expected)
        assert outcome.engine_deaths > 5


def test_moving_requests_with_their_tokens_loses_less_than_recomputing():
    case = scenario(kills(hours=0.5, every_s=37), hours=0.5)
    moved, computed_again = simulate(case, "elastic"), simulate(case, "elastic_recompute")
    assert moved.lost_share < 0.02 < computed_again.lost_share
    assert moved.iterations > computed_again.iterations
    assert moved.prefilled_again_tokens > computed_again.prefilled_again_tokens
