"""What a user's placement class does to the manager is in the log, once each."""

import threading
import time
from types import SimpleNamespace

from rl_agent.pool.runtime.policy_watch import PolicyWatch


def test_the_first_failure_is_a_line_and_later_ones_only_now_and_then(caplog):
    placement = SimpleNamespace(fallbacks=0, fault="score raises ZeroDivisionError: division by zero")
    watch = PolicyWatch("mine:Cheap", placement, None)
    for _ in range(120):
        placement.fallbacks += 1
        watch.note()
    assert [record.getMessage() for record in caplog.records] == [
        "policy=mine:Cheap: score raises ZeroDivisionError: division by zero; least_work decides instead",
        "policy=mine:Cheap: score raises ZeroDivisionError: division by zero; least_work decides instead"
        " (10 failures so far)",
        "policy=mine:Cheap: score raises ZeroDivisionError: division by zero; least_work decides instead"
        " (100 failures so far)",
    ]


def test_a_decision_that_does_not_end_is_reported_once_while_it_goes_on(caplog):
    placement = SimpleNamespace(fallbacks=0, fault="", asked_at=100.0, asking_since=None)
    looked = threading.Event()
    times = iter([103.0] + [107.0] * 1000)

    def clock():
        now = next(times)
        if now > 105:
            looked.set()
        return now

    with PolicyWatch("mine:Stuck", placement, clock).running(look_s=0.001):
        assert looked.wait(5)
        deadline = time.monotonic() + 5
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.001)
    assert [record.getMessage() for record in caplog.records] == [
        "policy=mine:Stuck: a decision has taken 7 s and goes on; meanwhile the manager stands still"
    ]
