"""Looks at pool and provider again and again, and carries out what `reconcile` decides.

    see (manager and provider, each bounded) ─► decide ─► write down ─► start, drain, stop (each bounded) ─┐
     ▲                                                                                          poll_s      │
     └──────────────────────────────────────────────────────────────────────────────────────────────────────┘

Nothing is started that was not written down before; on a full disk what is known is still drained and
stopped. Whatever fails is seen in the next look and tried again.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from rl_agent.autoscaler.fleet import Fleet, FleetMachine, Stage, present
from rl_agent.autoscaler.manager_link import HttpManager
from rl_agent.autoscaler.observation import FleetObservation, PoolView, RunOver, ScaleRules
from rl_agent.autoscaler.observe import start_failed, stopped
from rl_agent.autoscaler.reconcile import Action, Drain, Start, Stop, decide
from rl_agent.errors import HarnessError, StoreError
from rl_agent.pool.client import TokenRefused
from rl_agent.pool.demand.records import Provider, ProviderError, RentedMachine, Wanted

T = TypeVar("T")
MOST_PROBLEMS = 200
MOST_ENDS = 64
"""Drains and stops of one look; the next one goes on with the rest."""
AT_ONCE = 16
"""Calls to provider and manager at the same time."""


@dataclass(frozen=True, slots=True)
class ReconcileTimeouts:
    poll_s: float
    call_timeout_s: float
    """The time for each call to the provider or the manager."""


class ReconcileLoop:
    """Keeps one fleet at what its pool wants; `write` makes it durable, `report` shows a line to people."""

    def __init__(
        self,
        fleet: Fleet,
        provider: Provider,
        manager: HttpManager,
        rules: ScaleRules,
        times: ReconcileTimeouts,
        *,
        write: Callable[[Fleet], None],
        report: Callable[[str], None],
        clock: Callable[[], float],
        is_dry: bool = False,
    ) -> None:
        self.fleet = fleet
        self._provider = provider
        self._manager = manager
        self._rules = rules
        self._times = times
        self._write = write
        self._report = report
        self._clock = clock
        self._is_dry = is_dry
        self._written: Fleet | None = None
        self._problems: dict[str, str] = {}
        self._shown = ""
        self._is_refused = self._is_over = False
        self._running: dict[str, int] = {}
        """Requests that the pool's engines have, by name, as last seen."""
        self._free_calls = asyncio.Semaphore(AT_ONCE)

    async def run(self, leaving: asyncio.Event) -> None:
        """Keep the fleet until `leaving` is set; what is there stays."""
        while not leaving.is_set():
            await self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._times.poll_s):
                    await leaving.wait()

    async def end_all(self, timeout_s: float) -> bool:
        """Drain and stop the whole fleet; return whether all of it is gone within the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    await self.look(is_leaving=True)
                    if not self.fleet.machines:
                        return True
                    await asyncio.sleep(self._times.poll_s)
        return False

    async def look(self, *, is_leaving: bool = False) -> list[Action]:
        """Look once and do what follows from it; return what was decided."""
        observation = await self._see()
        if observation.engines is not None:
            self._running = {engine.name: engine.running for engine in observation.engines.values()}
        fleet, actions = decide(self.fleet, observation, self._rules, is_leaving=is_leaving)
        starts = [action for action in actions if isinstance(action, Start)]
        ends = [action for action in actions if not isinstance(action, Start)][:MOST_ENDS]
        if self._keep(fleet):
            self._show(observation, is_leaving=is_leaving)
        else:
            unwritten = {start.name for start in starts}
            machines = {name: machine for name, machine in fleet.machines.items() if name not in unwritten}
            self.fleet, starts = replace(fleet, machines=machines), []
        actions = [*starts, *ends]
        if self._is_dry:
            for action in actions:
                self._report(f"would {words_of(action)}")
            return actions
        async with asyncio.TaskGroup() as jobs:
            for action in actions:
                self._report(words_of(action))
                jobs.create_task(self._carry_out(action), name=words_of(action)[:80])
        return actions

    def what_is_left(self) -> list[str]:
        """Say of each machine what it is waiting for."""
        machines, settle_s = self.fleet.machines.values(), self._rules.settle_s
        return [left_words(machine, self._running.get(machine.name), settle_s) for machine in machines]

    async def _see(self) -> FleetObservation:
        self._is_refused = self._is_over = False
        async with asyncio.TaskGroup() as jobs:
            viewing = jobs.create_task(self._bounded("the manager", self._manager.view()))
            listing = jobs.create_task(self._bounded("the provider's list", self._provider.machines()))
        view: PoolView | None = viewing.result()
        machines: list[RentedMachine] | None = listing.result()
        return FleetObservation(
            self._clock(),
            None if view is None else view.engines,
            None if view is None else view.wanted,
            None if view is None else view.kinds,
            None if machines is None else tuple(machines),
            self._is_refused,
            self._is_over,
        )

    async def _bounded(self, what: str, call: Awaitable[T]) -> T | None:
        """Await a call; a failure is reported once, until it changes, and is None."""
        try:
            async with asyncio.timeout(self._times.call_timeout_s):
                answer = await call
        except (ProviderError, HarnessError) as error:
            self._is_refused |= isinstance(error, TokenRefused)
            self._is_over |= isinstance(error, RunOver)
            self._report_problem(what, str(error))
        except TimeoutError:
            self._report_problem(what, f"no answer within {self._times.call_timeout_s:g} s")
        else:
            if self._problems.pop(what, None):
                self._report(f"{what}: answers again")
            return answer
        return None

    async def _carry_out(self, action: Action) -> None:
        limit_s = self._times.call_timeout_s
        try:
            async with self._free_calls, asyncio.timeout(limit_s):
                match action:
                    case Start(name, kind):
                        await self._provider.start(name, kind)
                    case Drain(name, deadline_s, why):
                        await self._manager.drain(name, deadline_s, why)
                    case Stop(name):
                        await self._provider.stop(name)
                        self._keep(stopped(self.fleet, name, self._clock()))
        except (ProviderError, HarnessError) as error:
            self._report_problem(words_of(action), str(error))
            if isinstance(action, Start):
                why = "its provider did not start it"
                self._keep(start_failed(self.fleet, action.name, why, self._clock(), self._rules))
        except TimeoutError:  # it may have worked: the next looks will tell
            self._report_problem(words_of(action), f"no answer within {limit_s:g} s")

    def _keep(self, fleet: Fleet) -> bool:
        """Take the fleet over, and write it down if that says anything new; return whether it is written."""
        what = "the state file"
        self.fleet = fleet
        durable = replace(fleet, pool_seen_at=None)
        if durable != self._written and not self._is_dry:
            try:
                self._write(fleet)
            except StoreError as error:
                self._report_problem(what, str(error))
                return False
            self._written = durable
        self._problems.pop(what, None)
        return True

    def _report_problem(self, what: str, words: str) -> None:
        if self._problems.get(what) != words:
            if len(self._problems) >= MOST_PROBLEMS:
                self._problems.clear()
            self._problems[what] = words
            self._report(f"{what}: {words}")

    def _show(self, observation: FleetObservation, *, is_leaving: bool) -> None:
        """Report a line if its numbers are others than the last time; a reason alone changes all the time."""
        wanted = None if is_leaving else observation.wanted
        shown = "; ".join(self.what_is_left()) if is_leaving else summary(self.fleet, wanted)
        shown = shown or "no machine is left"
        if shown != self._shown:
            self._shown = shown
            self._report(shown if wanted is None else f"{shown}: {wanted.reason}")


def words_of(action: Action) -> str:
    """Say an action in words."""
    match action:
        case Start(name, kind):
            return f"start {name} ({kind.name}, ${kind.price_per_hour:g} an hour)"
        case Drain(name, deadline_s, why):
            return f"drain {name} within {deadline_s:.0f} s: {why}"
        case Stop(name, why):
            return f"stop {name}: {why}"


def left_words(machine: FleetMachine, running: int | None, settle_s: float) -> str:
    """Say what a machine that is to end is waiting for; `running` None: its engine is not in the pool."""
    if machine.stage is Stage.DRAINING and running is not None:
        return f"{machine.name} drains: {running} request{'s' * (running != 1)} left"
    if machine.stage is Stage.ENDING:
        if machine.missing_since is None:
            return f"{machine.name} ends: its provider lists it still"
        return f"{machine.name} ends: it is gone when its provider has not listed it for {settle_s:g} s"
    return f"{machine.name}: {_WORDS[machine.stage]}"


def summary(fleet: Fleet, demand: Wanted | None) -> str:
    """Say in one line what is wanted and what is there."""
    stages = Counter(machine.stage for machine in fleet.machines.values())
    here = ", ".join(
        f"{len(present(fleet, kind.name))} of {demand.counts.get(kind.name, 0)} {kind.name}"
        if demand is not None
        else f"{len(present(fleet, kind.name))} {kind.name}"
        for kind in fleet.kinds
    )
    counts = ", ".join(f"{stages[stage]} {words}" for stage, words in _WORDS.items() if stages[stage])
    return f"{here or 'no kinds are known'} ({counts or 'no machines'})"


_WORDS = {
    Stage.ASKED: "starting",
    Stage.JOINED: "in the pool",
    Stage.DRAINING: "draining",
    Stage.ENDING: "ending",
}
