"""Two `pool scale` with copies of a state file do not fight: one of them has the fleet."""

import asyncio
from dataclasses import replace

import pytest

from rl_agent.errors import ConfigError, RetryLater
from rl_agent.pool.scale.fleet import Fleet, Rented, Setback, Stage
from rl_agent.pool.scale.holding import LEASE_S, FleetHold, Held, failed_starts
from rl_agent.pool.scale.leases import FleetLeases, Lease
from rl_agent.pool.scale.records import EngineKind
from rl_agent.testing.virtual_time import run_virtually

SPOT, DEAR = (EngineKind(name, 1.0, 0, 4, 60.0) for name in ("spot", "dear"))


class Pool:
    """A manager's leases; `is_silent`: it does not answer."""

    def __init__(self):
        self.leases, self.is_silent, self.failed = FleetLeases(), False, []

    async def hold(self, fleet, holder, lasts_s, failed):
        if self.is_silent:
            raise RetryLater("no answer")
        now = asyncio.get_running_loop().time()
        self.failed.append(failed)
        found = self.leases.hold(fleet, Lease(holder, now + lasts_s, {}), now)
        return Held(found.holder == holder, found.holder, found.until - now)


def hold(pool, holder, lines=None):
    said = [] if lines is None else lines
    return FleetHold(pool, "rl-1", holder, said.append, lambda: asyncio.get_running_loop().time())


def test_a_second_one_waits_for_a_lease_and_gives_up_if_it_is_renewed():
    async def run():
        pool, lines = Pool(), []
        await hold(pool, "a:/state").take(asyncio.Event())
        keeping = asyncio.ensure_future(hold(pool, "a:/state").keep(lambda: Fleet("rl-1")))
        with pytest.raises(RetryLater, match=r"rl-1 is kept by a:/state, as with a copy of its --state file"):
            await hold(pool, "b:/copy", lines).take(asyncio.Event())
        keeping.cancel()
        assert lines == ["the fleet rl-1 is kept by a:/state: waiting for 60 s"]
        await hold(pool, "b:/copy").take(asyncio.Event())  # the first one was killed
        return asyncio.get_running_loop().time()

    assert run_virtually(run()) < 3 * LEASE_S


def test_one_that_was_asleep_while_another_took_the_fleet_ends():
    async def run():
        pool = Pool()
        await hold(pool, "a:/state").take(asyncio.Event())
        await asyncio.sleep(LEASE_S + 1)
        await hold(pool, "b:/copy").take(asyncio.Event())
        with pytest.raises(RetryLater, match="it has the machines now"):
            await hold(pool, "a:/state").keep(lambda: Fleet("rl-1"))

    run_virtually(run())


def test_a_fleet_that_was_left_in_order_is_free_at_once_and_a_silent_manager_keeps_nobody_from_it():
    async def run():
        pool = Pool()
        first = hold(pool, "a:/state")
        await first.take(asyncio.Event())
        await first.release()
        await hold(pool, "b:/moved").take(asyncio.Event())
        pool.is_silent = True
        await first.take(asyncio.Event())
        return asyncio.get_running_loop().time()

    assert run_virtually(run()) < 1.0


def test_kinds_whose_starts_failed_are_reported_with_the_time_until_the_next():
    stages = [Stage.JOINED, Stage.JOINED, Stage.ASKED, Stage.DRAINING, Stage.ENDING]
    machines = {str(n): Rented(str(n), "spot", 0.0, stage) for n, stage in enumerate(stages)}
    setbacks = {"spot": Setback(3, 130.0), "dear": Setback(1, 90.0)}
    fleet = replace(Fleet("rl-1", kinds=(SPOT, DEAR)), machines=machines, setbacks=setbacks)
    assert failed_starts(fleet, 100.0) == {
        "spot": {"count": 3, "retry_in_s": 30.0, "joined": 2, "starting": 1},
        "dear": {"count": 1, "retry_in_s": 0.0, "joined": 0, "starting": 0},
    }


def test_who_is_told_to_leave_while_another_has_the_fleet_does_not_take_it_to_end_its_machines():
    async def run():
        pool, lines, leaving = Pool(), [], asyncio.Event()
        await hold(pool, "a:/state").take(asyncio.Event())
        asyncio.get_running_loop().call_later(1.0, leaving.set)
        assert not await hold(pool, "b:/copy", lines).take(leaving)
        assert lines[-1] == "the fleet rl-1 is left to a:/state; no machine was touched"
        return asyncio.get_running_loop().time()

    assert run_virtually(run()) < 2.0


def test_a_refusal_of_the_fleet_is_reported_once_and_keeps_nobody_from_it():
    class Refusing(Pool):
        async def hold(self, fleet, holder, lasts_s, failed):
            raise ConfigError("http://m/fleets/rl-1 answers 422: a bad holder")

    async def run():
        lines = []
        held = hold(Refusing(), "a:/state", lines)
        assert await held.take(asyncio.Event())
        await held.release()
        return lines

    [line] = run_virtually(run())
    assert line.startswith(
        "the fleet rl-1 is not kept from a second `pool scale`: http://m/fleets/rl-1 answers"
    )


def test_only_kinds_that_the_manager_names_are_reported_as_failed():
    gone = {f"kind-{number}": Setback(1, 9.0) for number in range(100)}
    fleet = Fleet("rl-1", kinds=(SPOT,), setbacks={**gone, "spot": Setback(2, 9.0)})
    assert list(failed_starts(fleet, 0.0)) == ["spot"]
