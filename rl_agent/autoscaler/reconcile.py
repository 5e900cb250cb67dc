"""Decides which machines to start, drain and stop, from what is wanted and what is there. Pure.

    ASKED ─► JOINED ─► DRAINING ─► ENDING ─► forgotten
      └──── not joined in time, or its provider lost it ──┘

What may still exist counts against every limit, and what serves, or is about to, counts as present. The two
differ in what ends: it is replaced at once where the limits leave room, and paid for until its provider has
listed it no more for `settle_s`. An answer that is missing (None) changes nothing by itself.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from rl_agent.autoscaler.fleet import (
    Fleet,
    FleetMachine,
    Stage,
    present,
    price_of,
    price_per_hour,
    with_machine,
)
from rl_agent.autoscaler.observation import FleetObservation, ScaleRules, WhenLost
from rl_agent.autoscaler.observe import end_machine, observed, over_s, silent_s
from rl_agent.pool.demand.records import EngineKind

OVER_S = 60.0
"""The file of a run that is over must be gone for so long: the next run may begin in the same folder."""
MOST_STARTS = 32
"""The most starts in one look; the next look asks for more."""


@dataclass(frozen=True, slots=True)
class Start:
    name: str
    kind: EngineKind


@dataclass(frozen=True, slots=True)
class Drain:
    name: str
    deadline_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Stop:
    name: str
    why: str


Action = Start | Drain | Stop


def decide(
    fleet: Fleet, observation: FleetObservation, rules: ScaleRules, *, is_leaving: bool = False
) -> tuple[Fleet, list[Action]]:
    """Return the fleet as it is to be written down, and then what to do.

    `is_leaving`: nothing is wanted any more.
    """
    fleet = observed(fleet, observation, rules, is_leaving=is_leaving)
    names = fleet.machines.keys()
    targets = _targets(fleet, observation, rules, is_leaving=is_leaving)
    if targets is not None:
        fleet = _give_back(fleet, observation, rules, targets, _why(observation, is_leaving=is_leaving))
        if not is_leaving and None not in (observation.wanted, observation.engines, observation.machines):
            fleet = _rent(fleet, observation, rules, targets)
    return fleet, _actions(fleet, observation, rules, fleet.machines.keys() - names)


def _why(observation: FleetObservation, *, is_leaving: bool) -> str:
    if is_leaving:
        return "`pool scale` leaves"
    if observation.wanted is not None:
        return observation.wanted.reason
    return "its run is over" if observation.is_over else "nothing is wanted any more"


def _targets(
    fleet: Fleet, observation: FleetObservation, rules: ScaleRules, *, is_leaving: bool
) -> Mapping[str, int] | None:
    """Return the number of machines to have of each kind; None: as many as there are."""
    names = {machine.kind for machine in fleet.machines.values()} | {kind.name for kind in fleet.kinds}
    if is_leaving:
        return dict.fromkeys(names, 0)
    counts: Mapping[str, int] = {}
    if observation.wanted is not None:
        counts = observation.wanted.counts
    elif fleet.kept_since is None or rules.when_lost is WhenLost.KEEP:
        return None
    elif over_s(fleet, observation.now) >= OVER_S:
        return dict.fromkeys(names, 0)
    elif silent_s(fleet, observation.now) < rules.manager_timeout_s:
        return None
    kinds = {kind.name: kind for kind in fleet.kinds}
    targets = dict.fromkeys(names, 0)
    for name, kind in kinds.items():
        targets[name] = min(max(counts.get(name, 0), kind.min_engines), kind.max_engines)
    return _within_limits(fleet, rules, targets)


def _within_limits(fleet: Fleet, rules: ScaleRules, targets: dict[str, int]) -> Mapping[str, int]:
    """Lower the targets of the dearest until what is to stay is within the limits, which may have changed."""
    here = {kind: present(fleet, kind) for kind in targets}
    stay = {kind: min(target, len(here[kind])) for kind, target in targets.items()}
    prices = {kind: price_of(fleet, machines[0]) for kind, machines in here.items() if machines}

    def is_above() -> bool:
        dollars = sum(count * prices.get(kind, 0.0) for kind, count in stay.items())
        return (rules.max_engines is not None and sum(stay.values()) > rules.max_engines) or (
            rules.max_price_per_hour is not None and dollars > rules.max_price_per_hour + 1e-9
        )

    while is_above():
        dearest = max((kind for kind, count in stay.items() if count), key=lambda kind: prices[kind])
        stay[dearest] -= 1
        targets[dearest] = stay[dearest]
    return targets


def _give_back(
    fleet: Fleet, observation: FleetObservation, rules: ScaleRules, targets: Mapping[str, int], why: str
) -> Fleet:
    """Drain what is above the targets, or stop it before it joined: those with the least to lose."""
    engines = observation.engines or {}

    def loss(machine: FleetMachine) -> tuple[bool, int, float]:
        running = engines[machine.name].running if machine.name in engines else 0
        return machine.stage is not Stage.ASKED, running, -machine.asked_at

    for kind, target in targets.items():
        here = sorted(present(fleet, kind), key=loss)
        for machine in here[: max(0, len(here) - target)]:
            if machine.stage is Stage.ASKED:
                fleet = end_machine(fleet, machine, why, rules, observation.now)
            else:
                until = observation.now + rules.drain_s
                fleet = with_machine(
                    fleet, replace(machine, stage=Stage.DRAINING, drain_until=until, why=why)
                )
    return fleet


def _rent(
    fleet: Fleet, observation: FleetObservation, rules: ScaleRules, targets: Mapping[str, int]
) -> Fleet:
    """Write down the names of the machines to ask for, the cheapest kind first, within every limit."""
    most = fleet.next_number + MOST_STARTS
    for kind in sorted(fleet.kinds, key=lambda engine_kind: engine_kind.price_per_hour):
        setback = fleet.setbacks.get(kind.name)
        here = present(fleet, kind.name)
        is_trying = any(machine.stage is Stage.ASKED for machine in here)
        if setback is not None and (observation.now < setback.until or is_trying):
            continue
        for _ in range(targets[kind.name] - len(here)):
            if fleet.next_number >= most or not _has_room(fleet, kind, rules):
                break
            name = f"{fleet.name}-{fleet.next_number}"
            fleet = with_machine(
                fleet, FleetMachine(name, kind.name, observation.now, price_per_hour=kind.price_per_hour)
            )
            fleet = replace(fleet, next_number=fleet.next_number + 1)
            if setback is not None:
                break  # one try after a setback, not all at once
    return fleet


def _has_room(fleet: Fleet, kind: EngineKind, rules: ScaleRules) -> bool:
    """Return whether one more of a kind is within all limits, whatever ends counted too."""
    of_kind = sum(machine.kind == kind.name for machine in fleet.machines.values())
    price = price_per_hour(fleet) + kind.price_per_hour
    return (
        of_kind < kind.max_engines
        and (rules.max_engines is None or len(fleet.machines) < rules.max_engines)
        and (rules.max_price_per_hour is None or price <= rules.max_price_per_hour + 1e-9)
    )


def _actions(fleet: Fleet, observation: FleetObservation, rules: ScaleRules, new: Set[str]) -> list[Action]:
    kinds = {kind.name: kind for kind in fleet.kinds}
    engines = observation.engines or {}
    actions: list[Action] = []
    for machine in fleet.machines.values():
        match machine.stage:
            case Stage.ASKED if machine.name in new:
                actions.append(Start(machine.name, kinds[machine.kind]))
            case Stage.DRAINING if machine.name in engines and not engines[machine.name].is_draining:
                left_s = max(0.0, (machine.drain_until or observation.now) - observation.now)
                actions.append(Drain(machine.name, left_s, machine.why))
            case Stage.ENDING if machine.stopped_at is None or (
                machine.missing_since is None and observation.now - machine.stopped_at >= rules.stop_again_s
            ):
                actions.append(Stop(machine.name, machine.why))
    return actions
