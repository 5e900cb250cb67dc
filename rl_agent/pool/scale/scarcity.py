"""What may be wanted of a kind that its provider does not give: those that are there, a try at times. Pure.

starts fail ─► `pool scale` pauses, and reports it ─► as many as are there, dearer kinds in their place
   ▲                                                           │ the pause is over
   └──────── one more is wanted ◄──────────────────────────────┘   it comes: as before
"""

from dataclasses import replace

from rl_agent.pool.scale.demand import Demand, WantedRules
from rl_agent.pool.scale.records import EngineKind


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
