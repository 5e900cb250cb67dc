"""The controller of the window learns, though each iteration begins with engines that lag."""

from typing import Any

import pytest

from rl_agent.rollout.comparison import Comparison
from rl_agent.trainer.grpo.data.samples import Group, TrainingSample, Versions
from rl_agent.trainer.grpo.gpu_sharing.sharing import PoolSnapshot, SharedDevices, read_status
from rl_agent.trainer.grpo.gpu_sharing.window import LearntWindow
from tests.integration.trainer.settings import loss_settings


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
        return None if self._left < 0 else [group(self._left)]


def group(number: int, reward: float = 1.0) -> Group:
    """A group of two samples, of which the first has a reward of 1."""
    samples = (TrainingSample(str(n), (), r, Versions(0, 0)) for n, r in enumerate((1.0, reward)))
    return Group(str(number), tuple(samples))


def status(*, engine_version: int, pool_version: int, idle_s: float) -> dict[str, Any]:
    engine = {"id": "e", "name": "other", "state": "ready", "weight_version": engine_version}
    engine |= {"running": 0, "idle_s": idle_s}
    return {"requests": {"open": 8, "running": 8}, "engines": [engine], "weight_version": pool_version}


def test_a_window_is_learnt_while_engines_fetch_the_newest_version():
    now, shown = [0.0], [status(engine_version=0, pool_version=0, idle_s=0.0)]
    look = lambda: read_status(shown[0], "own", max_staleness=0)  # noqa: E731
    devices = SharedDevices("hybrid", Turns(), look, replaced=None, clock=lambda: now[0])
    source = devices.source(Arrivals(2))
    while source.take(1) is not None:
        now[0] += 1.0
    devices.waited(30.0)
    now[0] += 1.0
    shown[0] = status(engine_version=0, pool_version=1, idle_s=4.0)  # published, and not fetched yet
    devices.source(Arrivals(2))
    assert devices.known[1].length_s > 0


def test_an_engine_that_lags_is_none_that_work_can_be_left_to():
    lagging = status(engine_version=0, pool_version=1, idle_s=1.0)
    look = read_status(lagging, "own", max_staleness=0)
    assert (look.ready, dict(look.idle_s)) == (0, {"e": 1.0})
    assert read_status(lagging, "own", max_staleness=1).ready == 1


class Prepared:
    """Gives what it was handed, each at one take."""

    def __init__(self, *takes: list[Group]) -> None:
        self._takes = list(takes)

    def take(self, most: int) -> list[Group] | None:
        return self._takes.pop(0) if self._takes else []


@pytest.mark.parametrize(("overlaps", "is_open"), [(False, True), (True, False)])
def test_no_window_opens_where_rollouts_overlap_and_others_run_everything(overlaps, is_open):
    look = read_status(status(engine_version=1, pool_version=1, idle_s=0.0), "own", max_staleness=1)
    devices = SharedDevices("hybrid", Turns(), lambda: look, replaced=None, overlaps=overlaps)
    devices.source(Prepared([], [])).take(1)
    assert devices.is_open == is_open


@pytest.mark.parametrize(
    ("is_replaced", "reward", "is_open"),
    [(True, 1.0, True), (True, 0.0, False), (False, 1.0, False)],
    ids=["another is to come", "it is trained on", "none is sampled"],
)
def test_a_window_waits_for_the_group_that_comes_in_place_of_one(is_replaced, reward, is_open):
    """All that was asked for is done; the pool has not heard of more yet."""
    now, look = [100.0], PoolSnapshot(has_requests=False, has_work=False, ready=1, idle_s={"e": 0.0})
    replaced = Comparison(loss_settings(drop_uninformative=True)) if is_replaced else None
    devices = SharedDevices("hybrid", Turns(), lambda: look, replaced=replaced, clock=lambda: now[0])
    devices.known = {1: LearntWindow(60.0)}
    source = devices.source(Prepared([], [group(0, reward)]))
    source.take(1)
    assert devices.is_open
    now[0] += 1.0
    source.take(1)
    assert devices.is_open == is_open
    now[0] += 5.0  # nothing came of it
    source.take(1)
    assert not devices.is_open
