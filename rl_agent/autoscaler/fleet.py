"""Keeps a reconciler's record of its machines in a file that survives it, and adds up their number and price.

A name is written down before its machine is asked for, so a kill in between leaks none: the next start finds
the name and waits for its machine, or stops it. Names are never used twice.
"""

import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rl_agent.errors import StoreError
from rl_agent.pool.demand.records import EngineKind
from rl_agent.system.files import write_whole

_STRICT = ConfigDict(extra="forbid")
"""Fields that a newer version wrote are refused, not forgotten."""


class Stage(StrEnum):
    """The stage that a machine has come to."""

    ASKED = "asked"
    """Its engine has not been in the pool yet."""
    JOINED = "joined"
    """Its engine has been in the pool."""
    DRAINING = "draining"
    """The machine ends once its engine has no request left or has left the pool, or at `drain_until`."""
    ENDING = "ending"
    """The machine is being stopped, until the provider has listed it no more for a while."""


@dataclass(frozen=True, slots=True)
class FleetMachine:
    """A machine of this fleet, from before it is asked for until it is certainly gone."""

    __pydantic_config__ = _STRICT

    name: str
    kind: str
    asked_at: float
    stage: Stage = Stage.ASKED
    price_per_hour: float = 0.0
    """Dollars, as its kind cost when it was asked for; 0: not known."""
    unjoined_s: float = 0.0
    """Seconds for which the manager answered and did not have its engine, since it last had."""
    was_listed: bool = False
    missing_since: float | None = None
    """The time since which neither provider nor pool have shown it; None: they do."""
    drain_until: float | None = None
    ending_since: float | None = None
    stopped_at: float | None = None
    """The time of its last successful stop, as its provider says."""
    why: str = ""
    """The reason that it drains or ends."""


@dataclass(frozen=True, slots=True)
class Setback:
    """Starts of a kind that failed one after the other, and until when none is tried."""

    __pydantic_config__ = _STRICT

    count: int
    until: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """All that a reconciler knows from one look at the world to the next. Times are seconds of the epoch."""

    __pydantic_config__ = _STRICT

    name: str
    """Its machines are named NAME-NUMBER."""
    next_number: int = 1
    machines: Mapping[str, FleetMachine] = field(default_factory=dict)
    setbacks: Mapping[str, Setback] = field(default_factory=dict)
    """The setbacks, by the name of the kind."""
    kinds: tuple[EngineKind, ...] = ()
    """The kinds as the manager last named them."""
    pool_seen_at: float | None = None
    """The time of the manager's last answer."""
    kept_since: float | None = None
    """The time since which it has not answered, as this fleet counts; None: it does."""
    over_since: float | None = None
    """The time since which every look has found that its run is over; None: the last one has not."""
    manager: str = ""
    """Address of its manager at the last start: a run that is over states none. Empty: not known."""

    def number_of(self, machine: str) -> int | None:
        """Return the number in a name of this fleet; None for any other name."""
        match = re.fullmatch(re.escape(self.name) + r"-([1-9][0-9]{0,8})", machine)
        return int(match[1]) if match else None


def present(fleet: Fleet, kind: str) -> list[FleetMachine]:
    """Return the machines of a kind that serve or are about to."""
    return [
        machine
        for machine in fleet.machines.values()
        if machine.kind == kind
        and (machine.stage is Stage.ASKED or (machine.stage is Stage.JOINED and not is_lost(machine)))
    ]


def with_machine(fleet: Fleet, machine: FleetMachine) -> Fleet:
    """Return the fleet with this machine as it is now."""
    return replace(fleet, machines={**fleet.machines, machine.name: machine})


def price_per_hour(fleet: Fleet) -> float:
    """Return dollars per hour of all machines that may exist."""
    return sum(price_of(fleet, machine) for machine in fleet.machines.values())


def price_of(fleet: Fleet, machine: FleetMachine) -> float:
    """Return what a machine costs as far as is known; of a kind that nobody names, as much as any may."""
    prices = {kind.name: kind.price_per_hour for kind in fleet.kinds}
    unnamed = machine.price_per_hour or max(prices.values(), default=0.0)
    return prices.get(machine.kind, unnamed)


def is_lost(machine: FleetMachine) -> bool:
    """Return whether neither pool nor provider show a machine that they have shown."""
    return machine.missing_since is not None


def resumed(fleet: Fleet) -> Fleet:
    """Return a fleet as it goes on after a pause in which nobody looked, so that nothing was missed."""
    machines = {name: replace(machine, missing_since=None) for name, machine in fleet.machines.items()}
    return replace(fleet, machines=machines, kept_since=None, over_since=None, pool_seen_at=None)


def new_fleet(name: str) -> Fleet:
    """Return a fleet that has no machines yet; random letters make its names its own."""
    return Fleet(f"{name}-{secrets.token_hex(4)}")


def failed_starts(fleet: Fleet, now: float) -> dict[str, dict[str, float]]:
    """Return the kinds whose starts have failed, as the manager is told of them."""
    report: dict[str, dict[str, float]] = {}
    for name in {kind.name for kind in fleet.kinds} & fleet.setbacks.keys():  # the manager refuses others
        setback, machines = fleet.setbacks[name], present(fleet, name)
        starting = sum(machine.stage is Stage.ASKED for machine in machines)
        report[name] = {
            "count": setback.count,
            "retry_in_s": max(0.0, setback.until - now),
            "joined": len(machines) - starting,
            "starting": starting,
        }
    return report


_FLEET = TypeAdapter(Fleet)


def read_fleet(path: Path) -> Fleet | None:
    """Read the file of a fleet; None if there is none. Raises StoreError if it cannot be used."""
    try:
        return _FLEET.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"--state {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise StoreError(
            f"--state {path}: is not a state of `pool scale`; if its machines run, give another --state,"
            " and --adopt with the prefix of their names"
        ) from error


def write_fleet(path: Path, fleet: Fleet) -> None:
    """Replace the file of a fleet, durably. Raises StoreError."""
    try:
        write_whole(Path(os.path.realpath(path)), json.dumps(asdict(fleet)) + "\n")
    except OSError as error:
        raise StoreError(f"--state {path} cannot be written: {error.strerror}") from error
