"""The manager says within seconds that requests wait for an engine, and not again and again."""

from types import SimpleNamespace

from rl_agent.pool.runtime.waiting import WaitReport


class Engines:
    """The part of a pool's state that the report looks at."""

    def __init__(self):
        self.engines = {}
        self.is_ready = False

    def living(self, state):
        return iter([SimpleNamespace()] if self.is_ready else [])


def lines_of(report, times):
    return [bool(report.look(now)) for now in times]


def test_requests_without_an_engine_are_reported_once_a_minute():
    engines = Engines()
    report = WaitReport(engines, lambda: 7, timeout_s=600)
    assert lines_of(report, (0, 1, 2)) == [False] * 3
    assert report.look(3) == (
        "7 requests wait, for 3 s by now, as the pool has no ready engine (none has joined); each waits for"
        " at most 600 s, unless it names another time"
    )
    assert lines_of(report, (4, 30, 62, 63, 64)) == [False, False, False, True, False]
    engines.engines["a"] = SimpleNamespace()
    assert "(the 1 there are not ready)" in report.look(130)
    engines.is_ready = True
    assert report.look(131) == "an engine is ready: requests go on"
    assert report.look(132) == ""


def test_a_moment_without_an_engine_is_not_reported():
    engines, waiting = Engines(), [1]
    report = WaitReport(engines, lambda: waiting[0], timeout_s=600)
    assert lines_of(report, (0, 2)) == [False, False]
    waiting[0] = 0
    assert lines_of(report, (4,)) == [False]
    waiting[0] = 1
    assert lines_of(report, (5, 7)) == [False, False], "it is another wait"
