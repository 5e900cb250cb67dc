"""A reconciler notes its machines from one look at the world, case by case."""

from dataclasses import replace

import pytest

from rl_agent.autoscaler.fleet import Fleet, Stage
from rl_agent.autoscaler.observation import PoolEngine
from rl_agent.autoscaler.observe import start_failed
from rl_agent.autoscaler.reconcile import Drain, Start, Stop
from tests.unit.autoscaler.play import RULES, SPOT, Play, types


def test_start_without_a_machine_is_stopped_at_its_timeout_and_retried():
    play = Play()
    play.look(spot=1)
    while not (actions := play.look(spot=1)):
        pass
    assert types(actions) == [Stop]
    assert play.now == pytest.approx(1305.0)
    assert play.look(spot=1) == []
    assert play.look(6.0, spot=1) == [Start("f-2", SPOT)]


def test_pauses_double_up_to_a_limit_and_end_with_a_start_that_works():
    play, pauses = Play(), []

    def next_start():
        while not (starts := [action for action in play.look(1.0, spot=1) if isinstance(action, Start)]):
            pass
        return starts[0].name

    for _ in range(6):
        name = next_start()
        play.fleet = start_failed(play.fleet, name, "no quota", play.now, RULES)
        pauses.append(play.fleet.setbacks["spot"].until - play.now)
    assert pauses == [10, 20, 40, 80, 100, 100]
    play.comes(next_start())
    play.look(spot=1)
    assert play.fleet.setbacks == {}


def test_failed_starts_of_one_try_are_one_setback_despite_slow_refusals():
    play = Play(replace(SPOT, max_engines=10))
    started = play.look(spot=10)
    for start in started:
        play.fleet = start_failed(play.fleet, start.name, "no quota", play.now, RULES)
        play.now += 3.0
    assert len(started) == 10 and play.fleet.setbacks["spot"].count == 1
    assert play.fleet.setbacks["spot"].until == play.now - 3.0 + RULES.backoff_s


def test_a_refusal_and_timeouts_of_one_try_are_one_setback():
    play = Play()
    refused, *rest = play.look(spot=4)
    play.fleet = start_failed(play.fleet, refused.name, "no quota", play.now, RULES)
    while (Stop, rest[0].name) not in [(type(action), action.name) for action in play.look(spot=4)]:
        pass
    assert play.fleet.setbacks["spot"].count == 1
    assert play.fleet.setbacks["spot"].until == play.now + RULES.backoff_s


def test_drained_engine_without_requests_stops_before_its_deadline():
    play = Play().serving("f-1", "f-2")
    [drain] = play.look(spot=1)
    play.engines[drain.name] = PoolEngine(drain.name, 0, False)
    play.look(spot=1)
    assert play.stage(drain.name) is Stage.DRAINING  # it may still be given requests
    play.engines[drain.name] = PoolEngine(drain.name, 0, True)
    [stop] = play.look(spot=1)
    assert stop == Stop(drain.name, "because; it has no request left")


def test_a_drain_that_does_not_end_is_over_at_its_deadline():
    play = Play().serving("f-1")
    assert isinstance(play.look(spot=0)[0], Drain)
    play.engines["f-1"] = PoolEngine("f-1", 3, True)
    assert play.look(54.0, spot=0) == []
    assert types(play.look(6.0, spot=0)) == [Stop]


def test_a_machine_that_is_lost_is_replaced_at_once():
    play = Play().serving("f-1", "f-2")
    play.goes("f-2")
    assert play.look(spot=2) == [Start("f-3", SPOT)]


def test_one_wrong_list_ends_nothing():
    play = Play().serving("f-1", "f-2")
    play.machines = []
    assert play.look(spot=2) == [] and play.look(100.0, spot=2) == []


def test_engine_that_the_pool_drains_is_replaced_before_it_is_gone():
    play = Play().serving("f-1")
    play.engines["f-1"] = PoolEngine("f-1", 1, True)
    assert play.look(spot=1) == [Start("f-2", SPOT)]


def test_time_without_a_manager_does_not_count_against_a_start():
    play = Play()
    play.look(spot=1)
    play.comes("f-1", joins=False)
    play.engines = None
    for _ in range(100):
        play.look()
    play.engines = {}
    assert play.look(spot=1) == []


@pytest.mark.parametrize("name", ["other-1", "f", "f-", "f-0", "f-01", "f-1-2", "ff-1", "f-x", "F-1"])
def test_what_another_started_is_left_alone_whatever_its_name(name):
    play = Play()
    play.comes(name)
    assert play.look(spot=0) == [] and play.look(is_leaving=True) == []
    assert play.fleet.machines == {}


def test_a_fleet_whose_file_was_lost_takes_its_machines_back_from_the_list():
    play = Play()
    for name in ("f-7", "f-3"):
        play.comes(name)
    play.look(spot=2)
    assert play.look(spot=3) == [Start("f-8", SPOT)]


def test_a_number_that_had_ended_is_ended_again_when_it_is_listed():
    play = Play(fleet=Fleet("f", next_number=9))
    play.comes("f-3", joins=False)
    assert {*types(play.look(spot=1))} == {Stop, Start}
    assert play.stage("f-3") is Stage.ENDING


def test_two_machines_of_one_name_are_both_ended():
    play = Play().serving("f-1")
    play.comes("f-1")
    assert Stop("f-1", "its provider started two machines for one name") in play.look(spot=1)


def test_unlisted_machine_is_gone_after_settling_despite_failed_stops():
    play = Play().serving("f-1")
    play.stops_work = False
    play.goes("f-1")
    play.look(spot=0)
    play.look(28.0, is_leaving=True)
    assert "f-1" in play.fleet.machines
    play.look(2.0, is_leaving=True)
    play.look(0.5, is_leaving=True)
    assert play.fleet.machines == {}


def test_leaving_waits_for_no_drain_that_a_lost_manager_cannot_carry_out():
    play = Play().serving("f-1")
    play.engines = None
    assert play.look(is_leaving=True) == [] and play.stage("f-1") is Stage.DRAINING
    assert play.look(14.0, is_leaving=True) == []
    why = "`pool scale` leaves; the manager does not answer any more"
    assert play.look(1.0, is_leaving=True) == [Stop("f-1", why)]


def test_leaving_after_long_manager_silence_stops_at_the_second_look():
    play = Play().serving("f-1")
    play.engines = None
    play.look()
    play.look(30.0)
    play.look(is_leaving=True)
    assert types(play.look(is_leaving=True)) == [Stop]


def test_a_file_that_is_missed_for_a_moment_cuts_no_drain_short():
    play = Play().serving("f-1")
    play.look(spot=0)
    play.engines = None
    play.look()
    play.look(30.0)
    play.is_over = True
    assert play.look(1.0) == [] and play.stage("f-1") is Stage.DRAINING


def test_a_manager_that_answers_again_is_left_the_time_of_its_drains():
    play = Play().serving("f-1")
    engines, play.engines = play.engines, None
    play.look(is_leaving=True)
    play.engines = engines
    assert types(play.look(is_leaving=True)) == [Drain]
    assert types(play.look(40.0, is_leaving=True)) == [Drain]
