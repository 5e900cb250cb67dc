"""The loop around the decisions: bounded, written down first, and talkative only when something changes."""

import asyncio
from dataclasses import replace

import pytest

from rl_agent.autoscaler.fleet import Fleet
from rl_agent.autoscaler.observation import PoolEngine
from rl_agent.autoscaler.reconcile_loop import AT_ONCE, PoolView, ReconcileLoop, ReconcileTimeouts
from rl_agent.errors import RetryLater, StoreError
from rl_agent.pool.client import TokenRefused
from rl_agent.pool.demand.records import EngineKind, MachineState, ProviderError, RentedMachine, Wanted
from tests.support.virtual_time import run_virtually
from tests.unit.autoscaler.play import RULES

SPOT = EngineKind("spot", 1.0, 0, 4, 30.0)


class Cloud:
    """A provider and a manager that do as they are told, or what `fault` says."""

    def __init__(self):
        self.alive, self.calls, self.lines, self.written = [], [], [], []
        self.wanted, self.fault, self.drained, self.views = 2, "", set(), 0
        self.running = {}

    async def start(self, name, kind):
        self.calls.append(f"start {name}")
        await self._go_wrong("start")
        self.alive.append(name)

    async def stop(self, name):
        self.calls.append(f"stop {name}")
        await self._go_wrong("stop")
        self.alive.remove(name)

    async def machines(self):
        await self._go_wrong("list")
        return [RentedMachine(name, "spot", MachineState.RUNNING) for name in self.alive]

    async def view(self):
        await self._go_wrong("view")
        engines = {
            name: PoolEngine(name, self.running.get(name, 0), name in self.drained)
            for name in self.alive
            if name not in self.drained or self.running.get(name)
        }
        self.views += 1
        reason = f"{self.wanted} are wanted, by look {self.views}"
        return PoolView(engines, Wanted({"spot": self.wanted}, reason), (self.kind,))

    async def drain(self, name, deadline_s, why):
        self.calls.append(f"drain {name}")
        await self._go_wrong("drain")
        self.drained.add(name)

    async def _go_wrong(self, call):
        if self.fault == f"{call} hangs":
            await asyncio.Event().wait()
        if self.fault == f"{call} is refused":
            raise TokenRefused(f"http://m/{call} answers 401: the token is missing or wrong")
        if self.fault == f"{call} fails":
            raise RetryLater("no answer") if call in ("view", "drain") else ProviderError("no quota")

    def write(self, fleet):
        if self.fault == "disk full":
            raise StoreError("no space")
        self.written.append(fleet)

    def loop(self, fleet=None, kind=SPOT, **more):
        self.kind = kind
        return ReconcileLoop(
            fleet or Fleet("f"),
            self,
            self,
            RULES,
            ReconcileTimeouts(5.0, 20.0),
            write=self.write,
            report=self.lines.append,
            clock=lambda: asyncio.get_running_loop().time(),
            **more,
        )


def looks(cloud, loop, count):
    async def run():
        for _ in range(count):
            await loop.look()
            await asyncio.sleep(5.0)
        return asyncio.get_running_loop().time()

    return run_virtually(run())


async def served_and_ended(loop, limit_s, meanwhile=None):
    """Look until the fleet serves, then end it all; returns whether all has ended in time."""
    for _ in range(3):
        await loop.look()
    if meanwhile is not None:
        await meanwhile()
    return await loop.end_all(limit_s)


@pytest.fixture
def cloud():
    return Cloud()


@pytest.fixture
def loop(cloud):
    return cloud.loop()


def test_it_says_what_it_does_and_nothing_while_nothing_changes(cloud):
    looks(cloud, cloud.loop(), 20)
    assert cloud.alive == ["f-1", "f-2"]
    assert cloud.lines == [
        "2 of 2 spot (2 starting): 2 are wanted, by look 1",
        "start f-1 (spot, $1 an hour)",
        "start f-2 (spot, $1 an hour)",
        "2 of 2 spot (2 in the pool): 2 are wanted, by look 2",
    ]


def test_a_name_is_written_down_before_its_machine_is_asked_for(cloud):
    cloud.fault = "disk full"
    looks(cloud, cloud.loop(), 5)
    assert cloud.calls == [] and cloud.lines == ["the state file: no space"]


def test_hung_calls_are_cancelled_and_a_hung_start_is_not_repeated(cloud):
    cloud.fault = "start hangs"
    took_s = looks(cloud, cloud.loop(), 4)
    assert cloud.calls == ["start f-1", "start f-2"]
    assert took_s == 20.0 + 4 * 5.0
    assert sum("no answer within 20 s" in line for line in cloud.lines) == 2


def test_a_failure_is_said_once_and_its_end_too(loop, cloud):
    cloud.fault = "view fails"
    looks(cloud, loop, 5)
    cloud.fault = ""
    looks(cloud, loop, 1)
    assert cloud.lines[0] == "the manager: no answer"
    assert cloud.lines.count("the manager: no answer") == 1 and "the manager: answers again" in cloud.lines


def test_leaving_drains_stops_and_says_what_it_waits_for_until_all_is_gone(cloud):
    assert run_virtually(served_and_ended(cloud.loop(), 300.0))
    assert cloud.alive == [] and cloud.written[-1].machines == {}
    assert [call for call in cloud.calls if "drain" in call] == ["drain f-1", "drain f-2"]
    words = (
        f"{name} ends: it is gone when its provider has not listed it for 30 s" for name in ("f-1", "f-2")
    )
    assert "; ".join(words) in cloud.lines and cloud.lines[-1] == "no machine is left"


def test_a_dry_look_says_what_it_would_do_and_does_and_writes_nothing(cloud):
    run_virtually(cloud.loop(is_dry=True).look())
    assert cloud.calls == [] and cloud.written == []
    assert cloud.lines[-1] == "would start f-2 (spot, $1 an hour)"


def test_full_disk_allows_drains_and_stops_but_no_starts(loop, cloud):

    async def fill_the_disk():
        cloud.fault, cloud.wanted = "disk full", 3
        await loop.look()

    assert run_virtually(served_and_ended(loop, 300.0, fill_the_disk))
    starts = [call for call in cloud.calls if "start" in call]
    assert cloud.alive == [] and starts == ["start f-1", "start f-2"]


def test_after_a_full_disk_it_goes_on(loop, cloud):
    cloud.fault = "disk full"
    looks(cloud, loop, 3)
    cloud.fault = ""
    looks(cloud, loop, 3)
    assert len(cloud.alive) == 2 and set(cloud.alive) == set(cloud.written[-1].machines)


def test_calls_at_once_are_bounded():
    cloud, now, most = Cloud(), 0, 0

    async def start(name, kind):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(1.0)
        now -= 1

    cloud.start, cloud.wanted = start, 100
    loop = cloud.loop(Fleet("f"), kind=replace(SPOT, max_engines=100))
    looks(cloud, loop, 2)
    assert most == AT_ONCE


def test_a_manager_that_refuses_the_token_is_not_lost_and_costs_no_machine(loop, cloud):
    looks(cloud, loop, 3)
    cloud.fault = "view is refused"
    looks(cloud, loop, 2 * int(RULES.manager_timeout_s / 5.0))
    assert cloud.alive == ["f-1", "f-2"] and cloud.drained == set()
    assert sum("answers 401" in line for line in cloud.lines) == 1


def test_leaving_ends_at_its_limit_and_names_what_machines_wait_for(loop, cloud):
    cloud.running = {"f-1": 3, "f-2": 1}

    async def break_stops():
        cloud.fault = "stop fails"

    assert not run_virtually(served_and_ended(loop, 10.0, break_stops))
    assert set(loop.fleet.machines) == {"f-1", "f-2"}
    assert "drain f-1 within 60 s: `pool scale` leaves" in cloud.lines
    assert "f-1 drains: 3 requests left; f-2 drains: 1 request left" in cloud.lines
