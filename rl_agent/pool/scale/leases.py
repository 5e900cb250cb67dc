"""Which `pool scale` keeps each fleet, and which kinds their providers do not give now. Pure.

A copy of a state file is the same fleet, and two reconcilers of it would start and stop the same names. So
whoever keeps a fleet says so again and again; the manager lets one of them have it until its lease is over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

SCARCE_AFTER = 2
"""Starts of a kind that failed one after the other, until others are wanted in its place."""
MOST_FLEETS = 256


@dataclass(frozen=True, slots=True)
class FailedStarts:
    """Starts of a kind that failed one after the other."""

    count: int
    retry_at: float
    """None is tried before."""


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

    def scarce(self, now: float) -> dict[str, float]:
        """Return the kinds whose starts keep failing, with the seconds until one is tried again."""
        found: dict[str, float] = {}
        for lease in self._leases.values():
            for kind, failed in lease.failed.items() if lease.until > now else ():
                if failed.count >= SCARCE_AFTER:
                    found[kind] = max(found.get(kind, 0.0), failed.retry_at - now)
        return found
