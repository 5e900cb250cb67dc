"""Keeps a fleet for one `pool scale`: with a copy of its state file another one would be of the same fleet.

The manager gives the fleet to one of them for `LEASE_S`, again and again. Each time it gets to know which
kinds the provider does not give, so that it wants others.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from rl_agent.errors import HarnessError, RetryLater
from rl_agent.pool.client import TokenRefused
from rl_agent.pool.scale.fleet import Fleet, Stage, present

LEASE_S = 60.0
EVERY_S = 5.0
FailedReport = Mapping[str, Mapping[str, float]]
"""By the name of a kind: `count` of failed starts, `retry_in_s` until the next; `joined`, `starting`: the
machines of it that are there, and that may still come."""


@dataclass(frozen=True, slots=True)
class Held:
    """Whose a fleet is."""

    is_held: bool
    """By who asked."""
    holder: str
    left_s: float


class HoldsFleets(Protocol):
    """The manager, as it is asked for a fleet. Raises HarnessError if it does not answer, or refuses."""

    async def hold(self, fleet: str, holder: str, lasts_s: float, failed: FailedReport) -> Held | None: ...


@dataclass(slots=True)
class FleetHold:
    """One fleet at one manager; a manager that is silent, or knows of no fleets, keeps nobody from it."""

    manager: HoldsFleets
    fleet: str
    holder: str
    report: Callable[[str], None]
    clock: Callable[[], float]
    _refusal: str = field(default="", init=False)
    """The last refusal that was reported."""

    async def take(self, leaving: asyncio.Event) -> bool:
        """Wait until the fleet is free, for the lease of one that was killed. Raises RetryLater.

        Return whether it was taken: not if `leaving` is set while another has it.
        """
        until, has_said = asyncio.get_running_loop().time() + LEASE_S + EVERY_S, False
        while (held := await self._ask(LEASE_S, {})) is not None and not held.is_held:
            if asyncio.get_running_loop().time() >= until:
                raise _taken(self.fleet, held, "no machine was touched")
            if leaving.is_set():
                self.report(f"the fleet {self.fleet} is left to {held.holder}; no machine was touched")
                return False
            if not has_said:
                has_said = True
                self.report(
                    f"the fleet {self.fleet} is kept by {held.holder}: waiting for {held.left_s:.0f} s"
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(min(EVERY_S, max(0.1, held.left_s))):
                    await leaving.wait()
        return True

    async def keep(self, fleet: Callable[[], Fleet]) -> None:
        """Keep the fleet until cancelled. Raises RetryLater once another has it; machines are left alone."""
        while True:
            held = await self._ask(LEASE_S, failed_starts(fleet(), self.clock()))
            if held is not None and not held.is_held:
                raise _taken(self.fleet, held, "it has the machines now")
            await asyncio.sleep(EVERY_S)

    async def release(self) -> None:
        await self._ask(0.0, {})

    async def _ask(self, lasts_s: float, failed: FailedReport) -> Held | None:
        try:
            return await self.manager.hold(self.fleet, self.holder, lasts_s, failed)
        except (TokenRefused, RetryLater):
            return None  # the looks at the manager say what is wrong
        except HarnessError as error:
            if str(error) != self._refusal:
                self._refusal = str(error)
                self.report(f"the fleet {self.fleet} is not kept from a second `pool scale`: {error}")
            return None


def failed_starts(fleet: Fleet, now: float) -> FailedReport:
    """Return the kinds whose starts have failed, as the manager gets to know of them."""
    found: dict[str, dict[str, float]] = {}
    known = {kind.name for kind in fleet.kinds}
    for kind, one in fleet.setbacks.items():
        if kind in known:  # the manager refuses more kinds than it can have named
            here = present(fleet, kind)
            starting = sum(machine.stage is Stage.ASKED for machine in here)
            machines = {"joined": len(here) - starting, "starting": starting}
            found[kind] = {"count": one.count, "retry_in_s": max(0.0, one.until - now), **machines}
    return found


def _taken(fleet: str, held: Held, then: str) -> RetryLater:
    return RetryLater(
        f"the fleet {fleet} is kept by {held.holder}, as with a copy of its --state file: end one of the two;"
        f" {then}"
    )
