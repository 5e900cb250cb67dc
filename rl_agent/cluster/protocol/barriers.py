"""When a phase is over, and how it went. Pure.

A phase is open until its participants have finished it:

    lost      a training phase, and one is gone that had not finished: at once, for the others cannot end it
    failed    everyone who is alive has finished, and one has failed
    done      everyone who is alive has finished: done or skipped, as the master said
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rl_agent.cluster.protocol.records import Decision, Flag, PhaseKey


@dataclass(frozen=True, slots=True)
class Barrier:
    """A phase that is not decided."""

    participants: Mapping[str, int]
    """Incarnation and rank, of when it was opened."""
    seq: int
    """Number of the order then; what was finished under an earlier one does not count."""


class Participant(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def is_alive(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    @property
    def flags(self) -> Mapping[PhaseKey, Flag]: ...


def flag_of(key: PhaseKey, barrier: Barrier, participant: Participant) -> Flag | None:
    flag = participant.flags.get(key)
    return flag if flag is not None and flag.seq >= barrier.seq else None


def decide(
    key: PhaseKey, barrier: Barrier, participants: Mapping[str, Participant], master: str
) -> Decision | None:
    """None as long as somebody has to be waited for."""
    flags: list[Flag] = []
    lost: list[str] = []
    is_waiting = False
    for incarnation in sorted(barrier.participants, key=lambda name: barrier.participants[name]):
        participant = participants[incarnation]
        flag = flag_of(key, barrier, participant)
        if flag is not None:
            flags.append(flag)
        elif participant.is_alive:
            is_waiting = True
        else:
            lost.append(f"{participant.name}: {participant.reason}")
    masters = flag_of(key, barrier, participants[master])
    words = masters.words if masters is not None else ()
    if lost and key.is_training:
        return Decision(outcome="lost", lost=tuple(lost), words=words)
    if is_waiting or masters is None:
        return None
    is_failed = any(flag.outcome == "failed" for flag in flags)
    return Decision(outcome="failed" if is_failed else masters.outcome, lost=tuple(lost), words=words)
