"""Decides when a phase is over, and with which outcome. Pure.

A phase is open until its participants have finished it:

    lost      a training phase lost a participant that had not finished: at once, the others cannot end it
    failed    everyone who is alive has finished, and one has failed
    done      everyone who is alive has finished: done or skipped, as the master said
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rl_agent.cluster.protocol.peer import Peer
from rl_agent.cluster.protocol.records import Decision, Flag, PhaseKey


@dataclass(frozen=True, slots=True)
class Barrier:
    """A phase that is not decided yet."""

    participants: Mapping[str, int]
    """Incarnation and rank of each, as of when the phase was opened."""
    seq: int
    """Number of the order then; a flag of an earlier order does not count."""


def decide(key: PhaseKey, barrier: Barrier, peers: Mapping[str, Peer], master: str) -> Decision | None:
    """Decide a phase by the flags of its participants; None while one has to be waited for."""

    def flag_of(peer: Peer) -> Flag | None:
        flag = peer.flags.get(key)
        return flag if flag is not None and flag.seq >= barrier.seq else None

    flags: list[Flag] = []
    lost: list[str] = []
    is_waiting = False
    for incarnation in sorted(barrier.participants, key=lambda name: barrier.participants[name]):
        peer = peers[incarnation]
        flag = flag_of(peer)
        if flag is not None:
            flags.append(flag)
        elif peer.is_alive:
            is_waiting = True
        else:
            lost.append(f"{peer.name}: {peer.reason}")
    masters = flag_of(peers[master])
    words = masters.words if masters is not None else ()
    if lost and key.is_training:
        return Decision(outcome="lost", lost=tuple(lost), words=words)
    if is_waiting or masters is None:
        return None
    is_failed = any(flag.outcome == "failed" for flag in flags)
    return Decision(outcome="failed" if is_failed else masters.outcome, lost=tuple(lost), words=words)
