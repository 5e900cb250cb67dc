"""The controller of the window learns, though each iteration begins with engines that lag."""

from typing import Any

from rl_agent.trainer.sharing import SharedDevices, read_status


class Turns:
    def give(self) -> None:
        pass

    def take(self) -> None:
        pass


class Arrivals:
    """A group at each take, as many as an iteration has."""

    def __init__(self, count: int) -> None:
        self._left = count

    def take(self, most: int) -> list[Any] | None:
        self._left -= 1
        return None if self._left < 0 else ["group"]


def status(*, engine_version: int, pool_version: int, idle_s: float) -> dict[str, Any]:
    engine = {"id": "e", "name": "other", "state": "ready", "weight_version": engine_version}
    engine |= {"running": 0, "idle_s": idle_s}
    return {"requests": {"open": 8, "running": 8}, "engines": [engine], "weight_version": pool_version}


def test_a_window_is_learnt_while_engines_still_fetch_the_version_that_was_just_published():
    now, shown = [0.0], [status(engine_version=0, pool_version=0, idle_s=0.0)]
    devices = SharedDevices(
        "hybrid", Turns(), lambda: read_status(shown[0], "own", max_staleness=0), clock=lambda: now[0]
    )
    source = devices.source(Arrivals(2))
    while source.take(1) is not None:
        now[0] += 1.0
    devices.waited(30.0)
    now[0] += 1.0
    shown[0] = status(engine_version=0, pool_version=1, idle_s=4.0)  # published, and not fetched yet
    devices.source(Arrivals(2))
    assert devices.known[1].length_s > 0


def test_an_engine_that_lags_is_none_that_work_can_be_left_to():
    look = read_status(status(engine_version=0, pool_version=1, idle_s=1.0), "own", max_staleness=0)
    assert (look.ready, dict(look.idle_s)) == (0, {"e": 1.0})
    assert (
        read_status(status(engine_version=0, pool_version=1, idle_s=1.0), "own", max_staleness=1).ready == 1
    )
