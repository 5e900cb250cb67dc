"""A reconciler decides from one look at the world, case by case."""

from dataclasses import replace

import pytest

from rl_agent.autoscaler.fleet import Fleet, FleetMachine, Stage, price_per_hour
from rl_agent.autoscaler.observation import PoolEngine, WhenLost
from rl_agent.autoscaler.observe import start_failed
from rl_agent.autoscaler.reconcile import MOST_STARTS, Drain, Start, Stop
from rl_agent.pool.demand.records import MachineState, RentedMachine
from tests.unit.autoscaler.play import DEAR, RULES, SPOT, Play, names, types


def test_what_is_wanted_is_started_once_under_new_names():
    play = Play()
    assert play.look(spot=2) == [Start("f-1", SPOT), Start("f-2", SPOT)]
    assert play.look(spot=2) == []  # not visible yet, and counted as present
    play.comes("f-1")
    assert play.look(spot=3) == [Start("f-3", SPOT)]


def test_after_a_setback_one_start_is_tried_before_the_others():
    play = Play()
    play.look(spot=1)
    play.fleet = start_failed(play.fleet, "f-1", "no quota", play.now, RULES)
    assert {*types(play.look(11.0, spot=3))} == {Start, Stop}
    (starting,) = play.at(Stage.ASKED)
    play.comes(starting)
    assert types(play.look(spot=3)).count(Start) == 2


def test_surplus_engine_drains_before_its_machine_stops():
    play = Play().serving("f-1", "f-2")
    [drain] = play.look(spot=1)
    assert isinstance(drain, Drain) and drain.deadline_s == 60.0 and drain.why == "because"
    play.engines[drain.name] = PoolEngine(drain.name, 3, True)
    assert play.look(spot=1) == []
    del play.engines[drain.name]
    assert names(play.look(spot=1)) == [drain.name]
    assert play.stage(drain.name) is Stage.ENDING


def test_a_drain_is_asked_for_again_when_a_new_manager_does_not_know_of_it():
    play = Play().serving("f-1")
    play.look(spot=0)
    [again] = play.look(20.0, spot=0)
    assert again == Drain("f-1", 40.0, "because")


def test_victims_are_those_with_the_least_to_lose():
    play = Play().serving("f-1", "f-2", "f-3")
    for name, running in (("f-1", 2), ("f-2", 0), ("f-3", 5)):
        play.engines[name] = PoolEngine(name, running, False)
    assert names(play.look(spot=1)) == ["f-1", "f-2"]
    assert play.at(Stage.DRAINING) == {"f-1", "f-2"}


def test_unjoined_machine_is_stopped_first_and_then_the_newest():
    play = Play().serving("f-1")
    play.look(spot=2)  # f-2
    play.comes("f-2")
    play.look(spot=3)  # f-3, not joined
    assert play.look(spot=2) == [Stop("f-3", "because")]
    assert play.look(spot=1)[-1] == Drain("f-2", 60.0, "because")


def test_the_dear_kind_is_started_last_and_never_above_the_ceiling():
    play = Play(DEAR, SPOT, rules=replace(RULES, max_price_per_hour=6.0))
    assert play.look(spot=2, dear=2) == [Start("f-1", SPOT), Start("f-2", SPOT), Start("f-3", DEAR)]


def test_what_ends_counts_against_the_limits_until_it_is_certainly_gone():
    play = Play(SPOT, DEAR, rules=replace(RULES, max_engines=2)).serving("f-1", "f-2")
    assert {*types(play.look(dear=2))} == {Drain}
    for name in ("f-1", "f-2"):
        play.goes(name)
    assert {*types(play.look(dear=2))} == {Stop}
    assert play.look(29.0, dear=2) == []
    assert play.look(2.0, dear=2) == [Start("f-3", DEAR), Start("f-4", DEAR)]


def test_without_a_manager_the_fleet_shrinks_to_its_minimum_after_a_while():
    play = Play(replace(SPOT, min_engines=1)).serving("f-1", "f-2")
    play.engines = None
    for _ in range(119):
        assert play.look() == []
    play.look(10.0)
    assert len(play.at(Stage.DRAINING)) == len(play.at(Stage.JOINED)) == 1


def test_end_of_a_run_returns_all_machines_and_the_next_run_gets_its_own():
    play = Play(replace(SPOT, min_engines=1)).serving("f-1", "f-2")
    play.engines, play.is_over = None, True
    for _ in range(12):
        assert play.look() == []
    play.look(5.0)
    assert {stop.why for stop in play.look()} == {"its run is over; the manager does not answer any more"}
    play.machines = []
    play.look()
    play.look(40.0)
    assert play.fleet.machines == {}
    play.engines, play.is_over = {}, False
    assert play.look(spot=1) == [Start("f-3", replace(SPOT, min_engines=1))]


def test_manager_file_missing_under_a_minute_ends_nothing():
    play = Play().serving("f-1")
    play.engines = None
    for _ in range(50):
        play.is_over = False
        assert play.look() == []
        play.is_over = True
        assert play.look(1.0) == []
    assert play.look(50.0) == [] and play.stage("f-1") is Stage.JOINED
    play.look(10.0)
    assert play.stage("f-1") is Stage.DRAINING


@pytest.mark.parametrize("is_over", [False, True])
def test_without_a_manager_or_its_run_a_fleet_stays_if_configured_to(is_over):
    play = Play(rules=replace(RULES, when_lost=WhenLost.KEEP)).serving("f-1")
    play.engines, play.is_over = None, is_over
    for _ in range(1000):
        assert play.look() == []


def test_without_the_providers_list_nothing_is_started():
    play = Play()
    play.machines = None
    assert play.look(spot=2) == []


def test_a_stop_is_repeated_while_its_machine_is_listed():
    play = Play().serving("f-1")
    play.look(is_leaving=True)
    del play.engines["f-1"]
    assert types(play.look(is_leaving=True)) == [Stop]
    assert play.look(is_leaving=True) == []
    assert types(play.look(20.0, is_leaving=True)) == [Stop]


def test_leaving_ends_all_whatever_is_wanted_and_starts_nothing():
    play = Play(replace(SPOT, min_engines=1)).serving("f-1")
    assert play.look(is_leaving=True, spot=4) == [Drain("f-1", 60.0, "`pool scale` leaves")]
    play.goes("f-1")
    play.look(is_leaving=True, spot=4)
    play.look(40.0, is_leaving=True, spot=4)
    assert play.fleet.machines == {}


def test_counts_outside_of_a_kinds_bounds_are_cut():
    play = Play(replace(SPOT, min_engines=1))
    assert len(play.look(spot=0)) == 1
    assert len(play.look(spot=99, no_such_kind=3)) == 3


def test_restart_waits_for_recorded_starts_and_repeats_none():
    written = Fleet("f", 2, {"f-1": FleetMachine("f-1", "spot", 990.0)}, kinds=(SPOT,))
    play = Play(fleet=written)
    assert play.look(spot=1) == []
    play.comes("f-1")
    assert play.look(spot=1) == [] and play.stage("f-1") is Stage.JOINED


def test_machines_of_a_removed_kind_still_count_at_their_price():
    play = Play(rules=replace(RULES, max_price_per_hour=3.0)).serving("f-1", "f-2", "f-3")
    play.kinds = (replace(SPOT, name="renamed"),)
    assert {*types(play.look(renamed=3))} == {Drain}
    assert price_per_hour(play.fleet) == 3.0


def test_a_kind_that_became_dearer_is_drained_down_to_the_ceiling():
    play = Play(rules=replace(RULES, max_price_per_hour=3.0)).serving("f-1", "f-2", "f-3")
    play.kinds = (replace(SPOT, price_per_hour=1.5),)
    assert types(play.look(spot=3)) == [Drain]
    assert len(play.at(Stage.JOINED)) == 2


def test_restart_with_a_lower_limit_drains_the_dearest_machines_first():
    play = Play(SPOT, DEAR)
    play.look(spot=2, dear=1)
    for name, kind in (("f-1", "spot"), ("f-2", "spot"), ("f-3", "dear")):
        play.comes(name, kind)
    play.look(spot=2, dear=1)
    play.rules = replace(RULES, max_engines=2)
    assert names(play.look(spot=2, dear=1)) == ["f-3"]


def test_a_limit_moves_no_machine_from_one_kind_to_another():
    play = Play(SPOT, DEAR, rules=replace(RULES, max_engines=3)).serving("f-1")
    play.engines["f-1"] = PoolEngine("f-1", 0, False)
    play.look(spot=1, dear=2)
    for name in ("f-2", "f-3"):
        play.comes(name, "dear")
    play.look(spot=1, dear=2)
    assert play.look(spot=3, dear=2) == []


def test_lost_manager_without_kinds_leaves_the_fleet_unchanged():
    play = Play(replace(SPOT, min_engines=2)).serving("f-1", "f-2")
    play.kinds = ()
    play.look(spot=2)
    play.engines = None
    for _ in range(200):
        assert play.look() == []


def test_oversized_fleet_without_its_file_drains_serving_machines():
    play = Play(SPOT, DEAR)
    for name in ("f-1", "f-2"):
        play.machines.append(RentedMachine(name, "", MachineState.RUNNING))  # a list of names alone
        play.engines[name] = PoolEngine(name, 4, False, kind="spot")
    assert play.look(spot=2) == []
    assert types(play.look(spot=1)) == [Drain]


def test_a_look_asks_for_a_bounded_number_of_machines():
    play = Play(replace(SPOT, max_engines=4096))
    assert len(play.look(spot=10**9)) == MOST_STARTS == len(play.look(spot=10**9))
