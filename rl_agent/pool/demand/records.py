"""Records of scaling: kinds of engines, how many of each are wanted, and the machines of a provider.

manager    demand ─► `Wanted` ─► GET /wanted
reconciler `Wanted` + `RentedMachine`s ─► start, drain, stop ─► provider ─► machine ─► join_pool.sh ─► manager
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class EngineKind:
    """A kind of engine that can be had, such as one spot machine of a certain size."""

    name: str
    price_per_hour: float
    """Dollars for one engine."""
    min_engines: int
    max_engines: int
    start_s: float
    """Seconds from asking for an engine until it serves; used until start-ups of this kind were measured."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The number of engines that a pool wants of each kind, and why."""

    counts: Mapping[str, int]
    """The counts by the name of the kind."""
    reason: str
    """One line for people: `3 wanted: the trainer waited 41 s of 60`."""


class MachineState(StrEnum):
    PENDING = "pending"
    """Asked for; the provider has not started it yet."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Told to end, still there and still paid for."""


@dataclass(frozen=True, slots=True)
class RentedMachine:
    """A machine as its provider lists it."""

    name: str
    """The name that `Provider.start` got; its worker joins the pool under it."""
    kind: str
    state: MachineState


class ProviderError(Exception):
    """A provider failed or its answer cannot be used: one line for people. The call is made again later."""


class Provider(Protocol):
    """Starts and stops machines that join the pool; thin, and without a memory of its own.

    Every call may fail with ProviderError, hang (the caller bounds it), or report success without effect:
    the reconciler believes `machines` alone, and later calls may contradict earlier ones.
    """

    async def start(self, name: str, kind: EngineKind) -> None:
        """Ask for a machine whose worker joins under `name`; a second call for a name has no effect."""
        ...

    async def stop(self, name: str) -> None:
        """End a machine, whether it runs or waits; no error if there is none of that name."""
        ...

    async def machines(self) -> list[RentedMachine]:
        """Return all machines that this provider's `start` asked for and that may still cost something."""
        ...
