"""A slow lookup runs in the background and blocks no view."""

import threading

from rl_agent.page import verdict
from rl_agent.page.background_lookup import BackgroundLookup
from rl_agent.page.verdict import Diagnosis
from tests.unit.page.stores import until


def test_a_look_that_hangs_delays_nobody_and_no_second_one_begins():
    go_on, looks = threading.Event(), []

    def look() -> int:
        looks.append(len(looks))
        go_on.wait(30)
        return 7

    lookup = BackgroundLookup("slow", look, first=0, every_s=0.0)
    assert [lookup.newest() for _ in range(50)] == [0] * 50 and len(looks) <= 1
    go_on.set()
    until(lambda: lookup.newest() == 7)


def test_the_first_look_is_waited_for_once_and_no_longer_than_it_may_take():
    now, go_on = [0.0], threading.Event()
    lookup = BackgroundLookup("slow", lambda: go_on.wait(30), first=None, every_s=1.0, clock=lambda: now[0])
    assert lookup.newest(wait_s=0.01) is None
    now[0] = 20.0
    assert lookup.newest(wait_s=20.0) is None  # at once: so long ago it began
    go_on.set()
    assert lookup.newest(wait_s=50.0) is True


def test_a_result_is_looked_up_again_once_it_is_old():
    now, results = [0.0], iter(range(9))
    lookup = BackgroundLookup("quick", lambda: next(results), first=-1, every_s=10.0, clock=lambda: now[0])
    assert lookup.newest(wait_s=30) == 0
    until(lambda: not lookup._is_looking)
    now[0] = 9.9
    assert lookup.newest() == 0
    now[0] = 10.1
    until(lambda: lookup.newest() == 1)


def test_a_result_unused_for_long_is_forgotten_and_the_next_look_waits():
    now, go_on, results = [0.0], threading.Event(), iter(range(9))

    def look() -> int:
        number = next(results)
        assert number == 0 or go_on.wait(30)
        return number

    lookup = BackgroundLookup("slow", look, -1, every_s=2.0, forget_s=30.0, clock=lambda: now[0])
    assert lookup.newest(wait_s=30) == 0
    now[0] = 3600.0
    assert [lookup.newest(), lookup.newest(wait_s=0.01)] == [-1, -1]
    go_on.set()
    assert lookup.newest(wait_s=30) == 1


def test_a_run_that_was_over_an_hour_ago_is_not_said_to_be_over(tmp_path, monkeypatch):
    now, go_on = [0.0], threading.Event()
    monkeypatch.setattr(verdict, "look", lambda _: Diagnosis(is_over=now[0] == 0.0 or go_on.wait(30)))
    doctor = verdict.doctor(tmp_path)
    monkeypatch.setattr(doctor, "_clock", lambda: now[0])
    until(lambda: doctor.newest().is_over)
    now[0] = 3600.0
    assert not doctor.newest().is_over
    go_on.set()
