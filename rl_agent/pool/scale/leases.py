"""Which `pool scale` keeps each fleet, and which kinds their providers do not give now. Pure.

A copy of a state file is the same fleet, and two reconcilers of it would start and stop the same names. So
whoever keeps a fleet says so again and again; the manager lets one of them have it until its lease is over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rl_agent.pool.scale.demand import Scarce

SCARCE_AFTER = 2
"""Starts of a kind that failed one after the other, until others are wanted in its place."""
MOST_FLEETS = 256


@dataclass(frozen=True, slots=True)
class FailedStarts:
    """Starts of a kind that failed one after the other."""

    count: int
    retry_at: float
    """None is tried before."""
    joined: int = 0
    starting: int = 0
    """Machines of the kind that are there, and that may still come."""


@dataclass(frozen=True, slots=True)
class Lease:
    holder: str
    until: float
    failed: Mapping[str, FailedStarts]
    """By the name of the kind."""


@dataclass(slots=True)
class FleetLeases:
    _leases: dict[str, Lease] = field(default_factory=dict)
    """By the name of the fleet."""

    def hold(self, fleet: str, asked: Lease, now: float) -> Lease:
        """Return the lease that a fleet has after `asked`, which another holder's lease refuses."""
        self._leases = {name: one for name, one in self._leases.items() if one.until > now}
        present = self._leases.get(fleet)
        if present is not None and present.holder != asked.holder:
            return present
        if present is not None or len(self._leases) < MOST_FLEETS:
            self._leases[fleet] = asked
        return asked

    def scarce(self, now: float) -> dict[str, Scarce]:
        """Return the kinds whose starts keep failing; of fleets with the same kind the machines add up."""
        found: dict[str, Scarce] = {}
        for lease in self._leases.values():
            for kind, failed in lease.failed.items() if lease.until > now else ():
                if failed.count >= SCARCE_AFTER:
                    other = found.get(kind, Scarce(failed.retry_at - now))
                    found[kind] = Scarce(
                        max(other.retry_s, failed.retry_at - now),
                        other.joined + failed.joined,
                        other.starting + failed.starting,
                    )
        return found
