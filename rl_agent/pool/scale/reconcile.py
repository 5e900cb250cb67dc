"""Decides which machines to start, drain and stop, from what is wanted and what is there. Pure.

    ASKED ─► JOINED ─► DRAINING ─► ENDING ─► forgotten
      └──── not joined in time, or its provider lost it ──┘

What may still exist counts against every limit, and what serves, or is about to, counts as present. The two
differ in what ends: it is replaced at once where the limits leave room, and paid for until its provider has
listed it no more for `settle_s`. An answer that is missing (None) changes nothing by itself.
"""

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from enum import StrEnum

from rl_agent.pool.scale.fleet import (
    Fleet,
    Rented,
    Setback,
    Stage,
    present,
    price_of,
    price_per_hour,
)
from rl_agent.pool.scale.records import EngineKind, RentedMachine, Wanted

LONGEST_LOOK_S = 30.0
"""The most that one look counts of the time since the one before: after a pause it counts little."""
MOST_STARTS = 32
"""In one look; the next one asks for more."""


class WhenLost(StrEnum):
    """What to do once the manager has not answered for long."""

    KEEP = "keep"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class ScaleRules:
    """The limits and times that a reconciler decides by."""

    start_timeout_s: float
    """From asking for a machine until its engine is in the pool; also for one that left and may come back."""
    drain_s: float
    settle_s: float
    """How long a machine must not be listed until it is believed to be gone."""
    backoff_s: float
    """Pause after a start that failed; it doubles with each one after it, up to `backoff_limit_s`."""
    backoff_limit_s: float
    stop_again_s: float
    manager_timeout_s: float
    """How long everything is kept as it is while the manager does not answer."""
    when_lost: WhenLost
    max_engines: int | None = None
    """Of all kinds together."""
    max_price_per_hour: float | None = None
    """Dollars for all machines that may exist."""


@dataclass(frozen=True, slots=True)
class PoolEngine:
    """An engine as the manager's status shows it."""

    name: str
    running: int
    is_draining: bool
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen in one look at the world. None: no answer."""

    now: float
    engines: Mapping[str, PoolEngine] | None
    wanted: Wanted | None
    kinds: tuple[EngineKind, ...] | None
    machines: tuple[RentedMachine, ...] | None


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
    fleet: Fleet, sight: Sight, rules: ScaleRules, *, is_leaving: bool = False
) -> tuple[Fleet, list[Action]]:
    """Return the fleet as it is to be written down, and then what to do.

    `is_leaving`: nothing is wanted any more.
    """
    fleet = _adopt(_look(fleet, sight, rules), sight)
    known = fleet.machines.keys()
    targets = _targets(fleet, sight, rules, is_leaving=is_leaving)
    if targets is not None:
        fleet = _give_back(fleet, sight, rules, targets)
        if not is_leaving and None not in (sight.wanted, sight.engines, sight.machines):
            fleet = _rent(fleet, sight, rules, targets)
    return fleet, _actions(fleet, sight, rules, fleet.machines.keys() - known)


def start_failed(fleet: Fleet, name: str, why: str, now: float, rules: ScaleRules) -> Fleet:
    """Note that a start was refused. It may have had an effect all the same, so its name is stopped."""
    machine = fleet.machines.get(name)
    return fleet if machine is None else _end(fleet, machine, why, rules, now, is_setback=True)


def stopped(fleet: Fleet, name: str, now: float) -> Fleet:
    """Note that a stop succeeded, as the provider says."""
    machine = fleet.machines.get(name)
    return fleet if machine is None else _with(fleet, replace(machine, stopped_at=now))


def _look(fleet: Fleet, sight: Sight, rules: ScaleRules) -> Fleet:
    """Note what was seen: which machines came, are missing, failed or are gone."""
    elapsed_s = 0.0
    if sight.engines is None:
        fleet = replace(fleet, kept_since=sight.now if fleet.kept_since is None else fleet.kept_since)
    else:
        seen_at = sight.now if fleet.pool_seen_at is None else fleet.pool_seen_at
        elapsed_s = min(max(0.0, sight.now - seen_at), LONGEST_LOOK_S)
        fleet = replace(fleet, pool_seen_at=sight.now, kept_since=None)
    if sight.kinds:  # a manager that has lost its settings names none
        fleet = replace(fleet, kinds=sight.kinds)
    listed = None if sight.machines is None else Counter(one.name for one in sight.machines)
    for machine in list(fleet.machines.values()):
        fleet = _look_at(fleet, _seen(machine, sight, listed, elapsed_s), sight, listed, rules)
    return fleet


def _seen(machine: Rented, sight: Sight, listed: Mapping[str, int] | None, elapsed_s: float) -> Rented:
    """Return the machine with what pool and provider show of it."""
    engines = sight.engines
    is_in_pool = engines is not None and machine.name in engines
    if is_in_pool:
        machine = replace(machine, unjoined_s=0.0)
    elif engines is not None:
        machine = replace(machine, unjoined_s=machine.unjoined_s + elapsed_s)
    is_listed = listed is not None and machine.name in listed
    if is_listed or is_in_pool:
        return replace(machine, missing_since=None, was_listed=machine.was_listed or is_listed)
    if listed is not None and machine.missing_since is None:
        return replace(machine, missing_since=sight.now)
    return machine


def _look_at(
    fleet: Fleet, machine: Rented, sight: Sight, listed: Mapping[str, int] | None, rules: ScaleRules
) -> Fleet:
    engine = None if sight.engines is None else sight.engines.get(machine.name)
    is_missing = (
        listed is not None
        and machine.missing_since is not None
        and sight.now - machine.missing_since >= rules.settle_s
    )

    def ended(why: str, *, is_setback: bool = False) -> Fleet:
        return _end(fleet, machine, why, rules, sight.now, is_setback=is_setback)

    if machine.stage is not Stage.ENDING and listed is not None and listed.get(machine.name, 0) > 1:
        return ended("its provider started two machines for one name", is_setback=True)
    match machine.stage:
        case Stage.ASKED if engine is not None:
            joined = replace(machine, stage=Stage.JOINED)
            cleared = {kind: one for kind, one in fleet.setbacks.items() if kind != machine.kind}
            return _with(replace(fleet, setbacks=cleared), joined)
        case Stage.JOINED if engine is not None and engine.is_draining:
            until = sight.now + rules.drain_s
            leaving = replace(machine, stage=Stage.DRAINING, drain_until=until, why="the pool drains it")
            return _with(fleet, leaving)
        case Stage.ASKED | Stage.JOINED if machine.unjoined_s >= rules.start_timeout_s:
            words = f"its engine was not in the pool for {machine.unjoined_s:.0f} s"
            return ended(words, is_setback=True)
        case Stage.ASKED if is_missing and machine.was_listed:
            return ended("it was gone before its engine joined", is_setback=True)
        case Stage.JOINED if is_missing:
            return ended("it is gone")
        case Stage.DRAINING if sight.engines is not None and engine is None:
            return ended(f"{machine.why}; its engine has left the pool")
        case Stage.DRAINING if machine.drain_until is None or sight.now >= machine.drain_until:
            return ended(f"{machine.why}; its drain had {rules.drain_s:g} s")
        case Stage.ENDING if is_missing and _has_settled(machine, sight.now, rules):
            rest = {name: one for name, one in fleet.machines.items() if name != machine.name}
            return replace(fleet, machines=rest)
    return _with(fleet, machine)


def _has_settled(machine: Rented, now: float, rules: ScaleRules) -> bool:
    """Return whether a stop had its time; or twice as long, for many refuse to stop what is not there."""
    if machine.stopped_at is not None and now - machine.stopped_at >= rules.settle_s:
        return True
    since = max(machine.ending_since or now, machine.missing_since or now)
    return now - since >= 2 * rules.settle_s


def _adopt(fleet: Fleet, sight: Sight) -> Fleet:
    """Take in what the provider lists under this fleet's name and the file does not know.

    A number that was given out and is forgotten was ended: it is ended again. Another is from a file that was
    lost, and its machine serves on.
    """
    next_number = fleet.next_number
    for listed in sorted(sight.machines or (), key=lambda one: fleet.number_of(one.name) or 0):
        number = fleet.number_of(listed.name)
        if number is None or listed.name in fleet.machines:
            continue
        is_ours_to_end = number < fleet.next_number
        engine = (sight.engines or {}).get(listed.name)
        only = fleet.kinds[0].name if len(fleet.kinds) == 1 else ""
        kind = listed.kind or (engine.kind if engine is not None else "") or only
        stage, why = Stage.ASKED if engine is None else Stage.JOINED, ""
        if is_ours_to_end:
            stage, why = Stage.ENDING, "it had ended and is listed again"
        since = sight.now if is_ours_to_end else None
        found = Rented(listed.name, kind, sight.now, stage, was_listed=True, ending_since=since, why=why)
        fleet = _with(fleet, found)
        next_number = max(next_number, number + 1)
    return replace(fleet, next_number=next_number)


def _targets(fleet: Fleet, sight: Sight, rules: ScaleRules, *, is_leaving: bool) -> Mapping[str, int] | None:
    """Return the number of machines to have of each kind; None: as many as there are."""
    names = {one.kind for one in fleet.machines.values()} | {kind.name for kind in fleet.kinds}
    if is_leaving:
        return dict.fromkeys(names, 0)
    counts: Mapping[str, int] = {}
    if sight.wanted is not None:
        counts = sight.wanted.counts
    elif (
        fleet.kept_since is None
        or rules.when_lost is WhenLost.KEEP
        or sight.now - fleet.kept_since < rules.manager_timeout_s
    ):
        return None
    known = {kind.name: kind for kind in fleet.kinds}
    found = dict.fromkeys(names, 0)
    for name, kind in known.items():
        found[name] = min(max(counts.get(name, 0), kind.min_engines), kind.max_engines)
    return _within_limits(fleet, rules, found)


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


def _give_back(fleet: Fleet, sight: Sight, rules: ScaleRules, targets: Mapping[str, int]) -> Fleet:
    """Drain what is above the targets, or stop it before it joined: those with the least to lose."""
    why = sight.wanted.reason if sight.wanted is not None else "nothing is wanted any more"
    engines = sight.engines or {}

    def loss(machine: Rented) -> tuple[bool, int, float]:
        running = engines[machine.name].running if machine.name in engines else 0
        return machine.stage is not Stage.ASKED, running, -machine.asked_at

    for kind, target in targets.items():
        here = sorted(present(fleet, kind), key=loss)
        for machine in here[: max(0, len(here) - target)]:
            if machine.stage is Stage.ASKED:
                fleet = _end(fleet, machine, why, rules, sight.now)
            else:
                until = sight.now + rules.drain_s
                fleet = _with(fleet, replace(machine, stage=Stage.DRAINING, drain_until=until, why=why))
    return fleet


def _rent(fleet: Fleet, sight: Sight, rules: ScaleRules, targets: Mapping[str, int]) -> Fleet:
    """Write down the names of the machines to ask for, the cheapest kind first, within every limit."""
    most = fleet.next_number + MOST_STARTS
    for kind in sorted(fleet.kinds, key=lambda one: one.price_per_hour):
        setback = fleet.setbacks.get(kind.name)
        here = present(fleet, kind.name)
        is_trying = any(one.stage is Stage.ASKED for one in here)
        if setback is not None and (sight.now < setback.until or is_trying):
            continue
        for _ in range(targets[kind.name] - len(here)):
            if fleet.next_number >= most or not _has_room(fleet, kind, rules):
                break
            name = f"{fleet.name}-{fleet.next_number}"
            fleet = _with(fleet, Rented(name, kind.name, sight.now, price_per_hour=kind.price_per_hour))
            fleet = replace(fleet, next_number=fleet.next_number + 1)
            if setback is not None:
                break  # one try after a setback, not all at once
    return fleet


def _has_room(fleet: Fleet, kind: EngineKind, rules: ScaleRules) -> bool:
    """Return whether one more of a kind is within all limits, whatever ends counted too."""
    of_kind = sum(one.kind == kind.name for one in fleet.machines.values())
    price = price_per_hour(fleet) + kind.price_per_hour
    return (
        of_kind < kind.max_engines
        and (rules.max_engines is None or len(fleet.machines) < rules.max_engines)
        and (rules.max_price_per_hour is None or price <= rules.max_price_per_hour + 1e-9)
    )


def _actions(fleet: Fleet, sight: Sight, rules: ScaleRules, new: Set[str]) -> list[Action]:
    known = {kind.name: kind for kind in fleet.kinds}
    engines = sight.engines or {}
    actions: list[Action] = []
    for machine in fleet.machines.values():
        match machine.stage:
            case Stage.ASKED if machine.name in new:
                actions.append(Start(machine.name, known[machine.kind]))
            case Stage.DRAINING if machine.name in engines and not engines[machine.name].is_draining:
                left_s = max(0.0, (machine.drain_until or sight.now) - sight.now)
                actions.append(Drain(machine.name, left_s, machine.why))
            case Stage.ENDING if machine.stopped_at is None or (
                machine.missing_since is None and sight.now - machine.stopped_at >= rules.stop_again_s
            ):
                actions.append(Stop(machine.name, machine.why))
    return actions


def _end(
    fleet: Fleet, machine: Rented, why: str, rules: ScaleRules, now: float, *, is_setback: bool = False
) -> Fleet:
    fleet = _with(fleet, replace(machine, stage=Stage.ENDING, why=why, ending_since=now))
    if not is_setback:
        return fleet
    count = fleet.setbacks[machine.kind].count + 1 if machine.kind in fleet.setbacks else 1
    pause_s = min(rules.backoff_limit_s, rules.backoff_s * 2.0 ** min(count - 1, 30))
    return replace(fleet, setbacks={**fleet.setbacks, machine.kind: Setback(count, now + pause_s)})


def _with(fleet: Fleet, machine: Rented) -> Fleet:
    return replace(fleet, machines={**fleet.machines, machine.name: machine})
