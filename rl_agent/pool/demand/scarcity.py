"""Caps demand for kinds of machines whose starts keep failing at their provider. Pure.

starts fail ─► `pool scale` pauses, and reports it ─► as many as are there, dearer kinds in their place
   ▲                                                           │ the pause is over
   └──────── one more is wanted ◄──────────────────────────────┘   it comes: as before
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rl_agent.pool.demand.demand import Demand, ScarceKind, WantedRules
from rl_agent.pool.demand.records import EngineKind

SCARCE_AFTER = 2
"""Starts of a kind that failed one after the other, until others are wanted in its place."""
REPORT_LASTS_S = 60.0
"""A `pool scale` reports every few seconds: one that is silent for so long has ended."""


@dataclass(frozen=True, slots=True)
class FailedStarts:
    """Starts of a kind that failed one after the other."""

    count: int
    retry_at: float
    """None is tried before."""
    joined: int = 0
    starting: int = 0
    """Machines of the kind that are there, and that may still come."""


@dataclass(slots=True)
class FleetReports:
    """The last report of each fleet about the kinds whose starts have failed."""

    _reports: dict[str, tuple[float, Mapping[str, FailedStarts]]] = field(default_factory=dict)
    """Time at which a report expires, and its failed starts by kind; by the name of the fleet."""

    def add(self, fleet: str, failed: Mapping[str, FailedStarts], now: float) -> None:
        """Replace the report of a fleet."""
        self._reports = {name: report for name, report in self._reports.items() if report[0] > now}
        self._reports[fleet] = now + REPORT_LASTS_S, failed

    def scarce(self, now: float) -> dict[str, ScarceKind]:
        """Return the kinds whose starts keep failing; of fleets with the same kind the machines add up."""
        kinds: dict[str, ScarceKind] = {}
        for until, report in self._reports.values():
            for kind, failed in report.items() if until > now else ():
                if failed.count >= SCARCE_AFTER:
                    other = kinds.get(kind, ScarceKind(failed.retry_at - now))
                    kinds[kind] = ScarceKind(
                        max(other.retry_s, failed.retry_at - now),
                        other.joined + failed.joined,
                        other.starting + failed.starting,
                    )
        return kinds


def obtainable(rules: WantedRules, demand: Demand) -> WantedRules:
    """Return the rules with no more of each kind than can be had now."""
    return replace(rules, kinds=tuple(_limited(kind, demand) for kind in rules.kinds))


def scarce_words(rules: WantedRules, demand: Demand) -> str:
    """Say which kinds cannot be had now; empty if all can."""
    scarce = demand.scarce
    names = [kind.name for kind in rules.kinds if kind.name in scarce and scarce[kind.name].retry_s > 0]
    return f"; no more {', '.join(names)} can be had for now" if names else ""


def _limited(kind: EngineKind, demand: Demand) -> EngineKind:
    scarce = demand.scarce.get(kind.name)
    if scarce is None:
        return kind
    # Not what is ready alone: engines that load weights, or have yet to come, are none to give back.
    there = max(demand.present.get(kind.name, 0), scarce.joined)
    most = min(kind.max_engines, there + max(scarce.starting, int(scarce.retry_s <= 0)))
    return replace(kind, max_engines=most, min_engines=min(kind.min_engines, most))
