"""Machines that are rented as they are wanted, in virtual time."""

from dataclasses import replace

import pytest

from rl_agent.simulation.fleet import VirtualFleet
from rl_agent.simulation.scenario import rules_for_simulation, simulate
from rl_agent.simulation.spot import Change
from rl_agent.simulation.world import RentedPool
from tests.unit.simulation.scenarios import scenario

PLACES = [Change(0.0, is_join=True)] * 4


def fleet(wanted: int, changes=PLACES) -> VirtualFleet:
    case = scenario()
    world = RentedPool(rules=case.rules, chunk=case.chunk, on_ended=lambda request: None)
    outcome = VirtualFleet(world, case.engine, "rented", wanted, seed=0)
    outcome.begin(tuple(changes))
    return outcome


def test_no_more_machines_are_rented_than_wanted_or_than_places_exist():
    for wanted, count in ((0, 0), (3, 3), (9, 4)):
        outcome = fleet(wanted)
        outcome.world.run(100.0)
        assert len(outcome.world.machines) == len(outcome.world.engines) == count


def test_a_machine_that_is_lost_is_replaced_where_another_place_is_free():
    outcome = fleet(2, [*PLACES, *(Change(at, is_join=False) for at in (100.0, 200.0, 300.0))])
    for until, count in ((150.0, 2), (250.0, 2), (350.0, 1)):
        outcome.world.run(until)
        assert len(outcome.world.machines) == count


def test_unwanted_machines_are_returned_and_cost_nothing_more():
    outcome = fleet(3)
    outcome.world.run(3600.0)
    outcome.want(1)
    outcome.world.run(7200.0)
    assert outcome.world.machine_hours() == pytest.approx(3 + 1)
    assert outcome.world.state.account.engine_deaths == 0


def test_an_autoscaled_fleet_follows_growing_lengths_and_ends_with_work():
    words = ("length_growth=0.1", "iterations=12", "mean_tokens=300", "max_staleness=1", "engine_price=4")
    case = scenario(PLACES, *words, hours=3.0)
    outcome, largest = simulate(case, "autoscaled"), simulate(case, "elastic")
    assert outcome.iterations == largest.iterations == 12
    assert outcome.cost_per_million_tokens < largest.cost_per_million_tokens
    assert outcome.engines < largest.engines


def test_the_mean_length_grows_up_to_a_bound_and_not_at_all_without_growth():
    work = scenario(PLACES, "length_growth=0.5").work
    means = [sum(work.lengths(iteration)) / 32 for iteration in (1, 3, 40, 80)]
    assert means[0] < means[1] < means[2]
    assert means[3] == pytest.approx(means[2], rel=0.3)
    still = replace(work, length_growth=0.0)
    assert still.lengths(1) == scenario().work.lengths(1)


def test_tokens_that_count_as_progress_are_counted_in_chunks_too():
    rules = scenario().rules
    assert rules_for_simulation(replace(rules, min_progress_tokens=64), 2.0, 32).min_progress_tokens == 2
    assert rules_for_simulation(replace(rules, min_progress_tokens=16), 2.0, 32).min_progress_tokens == 1
