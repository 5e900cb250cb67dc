"""Notes in a fleet what a look at the world has shown of its machines, and what their provider reports. Pure.

A machine that came has joined; one that is missing, late or doubled ends; one that is certainly gone is
forgotten. An answer that is missing (None) changes nothing by itself.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import inf

from rl_agent.autoscaler.fleet import Fleet, FleetMachine, Setback, Stage, with_machine
from rl_agent.autoscaler.observation import FleetObservation, ScaleRules

SILENT_S = 15.0
"""A manager that has been silent for so long hands no requests over any more; a restart takes less."""
LONGEST_LOOK_S = 30.0
"""The most that one look counts of the time since the one before: after a pause it counts little."""


def observed(
    fleet: Fleet, observation: FleetObservation, rules: ScaleRules, *, is_leaving: bool = False
) -> Fleet:
    """Return the fleet with what was seen: which machines came, are missing, failed or are gone.

    With nobody to go on for (`is_leaving`, or the run is over) no drain outlasts its manager.
    """
    elapsed_s = 0.0
    if observation.engines is None and observation.is_refused:
        fleet = replace(fleet, kept_since=None)
    elif observation.engines is None:
        fleet = replace(fleet, kept_since=observation.now if fleet.kept_since is None else fleet.kept_since)
    else:
        seen_at = observation.now if fleet.pool_seen_at is None else fleet.pool_seen_at
        elapsed_s = min(max(0.0, observation.now - seen_at), LONGEST_LOOK_S)
        fleet = replace(fleet, pool_seen_at=observation.now, kept_since=None)
    if observation.kinds:  # a manager that has lost its settings names none
        fleet = replace(fleet, kinds=observation.kinds)
    over_since = observation.now if fleet.over_since is None else fleet.over_since
    fleet = replace(fleet, over_since=over_since if observation.is_over else None)
    end_s = silent_s(fleet, observation.now) if is_leaving else over_s(fleet, observation.now)
    if end_s >= SILENT_S:
        fleet = _without_drains(fleet, observation.now)
    listed = None if observation.machines is None else Counter(rented.name for rented in observation.machines)
    for machine in list(fleet.machines.values()):
        fleet = _look_at(fleet, _seen(machine, observation, listed, elapsed_s), observation, listed, rules)
    return _adopt(fleet, observation)


def silent_s(fleet: Fleet, now: float) -> float:
    """Return for how long the manager has not answered."""
    return 0.0 if fleet.kept_since is None else now - fleet.kept_since


def over_s(fleet: Fleet, now: float) -> float:
    """Return for how long every look has found the run over: a shared folder may lack a file for a moment."""
    return 0.0 if fleet.over_since is None else now - fleet.over_since


def _without_drains(fleet: Fleet, now: float) -> Fleet:
    """Return the fleet with what drains to end at once: its worker hands over what it still can."""
    why = "the manager does not answer any more"
    for machine in list(fleet.machines.values()):
        if machine.stage is Stage.DRAINING:
            ending = replace(machine, stage=Stage.ENDING, ending_since=now, why=f"{machine.why}; {why}")
            fleet = with_machine(fleet, ending)
    return fleet


def _seen(
    machine: FleetMachine, observation: FleetObservation, listed: Mapping[str, int] | None, elapsed_s: float
) -> FleetMachine:
    """Return the machine with what pool and provider show of it."""
    engines = observation.engines
    is_in_pool = engines is not None and machine.name in engines
    if is_in_pool:
        machine = replace(machine, unjoined_s=0.0)
    elif engines is not None:
        machine = replace(machine, unjoined_s=machine.unjoined_s + elapsed_s)
    is_listed = listed is not None and machine.name in listed
    if is_listed or is_in_pool:
        return replace(machine, missing_since=None, was_listed=machine.was_listed or is_listed)
    if listed is not None and machine.missing_since is None:
        return replace(machine, missing_since=observation.now)
    return machine


def _look_at(
    fleet: Fleet,
    machine: FleetMachine,
    observation: FleetObservation,
    listed: Mapping[str, int] | None,
    rules: ScaleRules,
) -> Fleet:
    engine = None if observation.engines is None else observation.engines.get(machine.name)
    is_missing = (
        listed is not None
        and machine.missing_since is not None
        and observation.now - machine.missing_since >= rules.settle_s
    )

    def ended(why: str, *, is_setback: bool = False) -> Fleet:
        return end_machine(fleet, machine, why, rules, observation.now, is_setback=is_setback)

    if machine.stage is not Stage.ENDING and listed is not None and listed.get(machine.name, 0) > 1:
        return ended("its provider started two machines for one name", is_setback=True)
    match machine.stage:
        case Stage.ASKED if engine is not None:
            joined = replace(machine, stage=Stage.JOINED)
            cleared = {kind: setback for kind, setback in fleet.setbacks.items() if kind != machine.kind}
            return with_machine(replace(fleet, setbacks=cleared), joined)
        case Stage.JOINED if engine is not None and engine.is_draining:
            until = observation.now + rules.drain_s
            leaving = replace(machine, stage=Stage.DRAINING, drain_until=until, why="the pool drains it")
            return with_machine(fleet, leaving)
        case Stage.ASKED | Stage.JOINED if machine.unjoined_s >= rules.start_timeout_s:
            words = f"its engine was not in the pool for {machine.unjoined_s:.0f} s"
            return ended(words, is_setback=True)
        case Stage.ASKED if is_missing and machine.was_listed:
            return ended("it was gone before its engine joined", is_setback=True)
        case Stage.JOINED if is_missing:
            return ended("it is gone")
        case Stage.DRAINING if observation.engines is not None and engine is None:
            return ended(f"{machine.why}; its engine has left the pool")
        case Stage.DRAINING if engine is not None and engine.is_draining and not engine.running:
            return ended(f"{machine.why}; it has no request left")
        case Stage.DRAINING if machine.drain_until is None or observation.now >= machine.drain_until:
            return ended(f"{machine.why}; its drain had {rules.drain_s:g} s")
        case Stage.ENDING if is_missing and _has_settled(machine, observation.now, rules):
            rest = {name: rented for name, rented in fleet.machines.items() if name != machine.name}
            return replace(fleet, machines=rest)
    return with_machine(fleet, machine)


def _has_settled(machine: FleetMachine, now: float, rules: ScaleRules) -> bool:
    """Return whether nothing of a machine that is not listed can still come.

    One that was listed is gone. Of any other the start may still be under way until a stop had its time, or
    twice as long, for many providers refuse to stop what is not there.
    """
    if machine.was_listed:
        return True
    if machine.stopped_at is not None and now - machine.stopped_at >= rules.settle_s:
        return True
    since = max(machine.ending_since or now, machine.missing_since or now)
    return now - since >= 2 * rules.settle_s


def start_failed(fleet: Fleet, name: str, why: str, now: float, rules: ScaleRules) -> Fleet:
    """Note that a start was refused. It may have had an effect all the same, so its name is stopped."""
    machine = fleet.machines.get(name)
    return fleet if machine is None else end_machine(fleet, machine, why, rules, now, is_setback=True)


def stopped(fleet: Fleet, name: str, now: float) -> Fleet:
    """Note that a stop succeeded, as the provider says."""
    machine = fleet.machines.get(name)
    return fleet if machine is None else with_machine(fleet, replace(machine, stopped_at=now))


def _adopt(fleet: Fleet, observation: FleetObservation) -> Fleet:
    """Take in what the provider lists under this fleet's name and the file does not know.

    A number that was given out and is forgotten was ended: it is ended again. Another is from a file that was
    lost, and its machine serves on.
    """
    next_number = fleet.next_number
    for listed in sorted(observation.machines or (), key=lambda rented: fleet.number_of(rented.name) or 0):
        number = fleet.number_of(listed.name)
        if number is None or listed.name in fleet.machines:
            continue
        is_ours_to_end = number < fleet.next_number
        engine = (observation.engines or {}).get(listed.name)
        only = fleet.kinds[0].name if len(fleet.kinds) == 1 else ""
        kind = listed.kind or (engine.kind if engine is not None else "") or only
        stage, why = Stage.ASKED if engine is None else Stage.JOINED, ""
        if is_ours_to_end:
            stage, why = Stage.ENDING, "it had ended and is listed again"
        since = observation.now if is_ours_to_end else None
        machine = FleetMachine(
            listed.name, kind, observation.now, stage, was_listed=True, ending_since=since, why=why
        )
        fleet = with_machine(fleet, machine)
        next_number = max(next_number, number + 1)
    return replace(fleet, next_number=next_number)


def end_machine(
    fleet: Fleet, machine: FleetMachine, why: str, rules: ScaleRules, now: float, *, is_setback: bool = False
) -> Fleet:
    """Return the fleet with a machine to stop; a setback pauses the starts of its kind.

    Machines of one try, of which many may fail one after the other, are one setback: the pause lasts from the
    last of them, and doubles with each try.
    """
    fleet = with_machine(fleet, replace(machine, stage=Stage.ENDING, why=why, ending_since=now))
    if not is_setback:
        return fleet
    before = fleet.setbacks.get(machine.kind, Setback(0, -inf))
    # None is asked for in a pause: one that was asked for before its end is of the try that led to it.
    count = before.count + int(machine.asked_at >= before.until)
    pause_s = min(rules.backoff_limit_s, rules.backoff_s * 2.0 ** min(count - 1, 30))
    return replace(fleet, setbacks={**fleet.setbacks, machine.kind: Setback(count, now + pause_s)})
