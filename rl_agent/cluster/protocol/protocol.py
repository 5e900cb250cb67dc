"""Decides, for the master, which nodes belong to the run, which are dead, which phases are done. Pure.

    a node:     waiting ──► alive ──► left                a phase:   open ──► decided, once
                   │          └─────► dead (silent for a lease)
                   └──────► refused

`step` takes an event and returns the new state and the commands that follow from it. A node's record counts
only while the node is alive here: one that was declared dead stays dead, also if it wakes up.
"""

import itertools
from dataclasses import replace

from rl_agent.cluster.protocol import barriers
from rl_agent.cluster.protocol.barriers import Barrier
from rl_agent.cluster.protocol.events import (
    ChunksPublished,
    ClaimFound,
    Command,
    DecisionAwaited,
    Event,
    LogLine,
    OrderRegrouped,
    PhaseClosed,
    PhaseDecided,
    PhaseOrdered,
    Polled,
    ReadShard,
    RecordChanged,
    ShardRead,
    WriteBatch,
    WriteDecision,
)
from rl_agent.cluster.protocol.ledger import ChunkLedger
from rl_agent.cluster.protocol.peer import Peer
from rl_agent.cluster.protocol.records import Decision, PhaseKey, PhaseOrder, RankRecord, RunEnd
from rl_agent.cluster.protocol.state import ClusterState, Newcomer


def counted_silence_s(gap_s: float, lease_s: float) -> float:
    """Return how much of the time between two polls counts as silence of the other nodes.

    The observer may have been stopped itself, so one gap counts for a quarter of a lease at most.
    """
    return min(gap_s, lease_s / 4)


def step(state: ClusterState, event: Event, now: float) -> tuple[ClusterState, list[Command]]:
    """Return the state after an event, and the commands to carry out.

    Raises ValueError if the master decides a phase twice, orders a decided one, or adds to a closed one.
    """
    before = state
    match event:
        case RecordChanged(record):
            state = _see(state, record)
        case Polled():
            state = replace(_age(state, counted_silence_s(now - state.now, state.terms.lease_s)), now=now)
        case PhaseOrdered(key, words):
            state = _order(state, key, words)
        case OrderRegrouped() if state.order is not None:
            alive = {i: r for i, r in state.order.participants.items() if state.peers[i].is_alive}
            state = replace(state, order=state.order.model_copy(update={"participants": alive}))
        case DecisionAwaited(key):
            state = _open(state, key)
        case PhaseDecided(key, outcome, words):
            state = _decide(state, key, Decision(outcome=outcome, words=words))
        case ChunksPublished(key, groups, chunk_tasks, digest, version):
            is_more = state.ledger is not None and state.ledger.key == key
            ledger = state.ledger if is_more and state.ledger else ChunkLedger(key, digest, version)
            state = replace(state, ledger=ledger.publish(groups, chunk_tasks))
        case ClaimFound(key, chunk, incarnation, rank) if state.ledger and state.ledger.key == key:
            ledger = state.ledger if incarnation in state.peers else state.ledger.lose(incarnation)
            state = replace(state, ledger=ledger.claim(chunk, incarnation, rank))
        case ShardRead(key, incarnation, salvage) if state.ledger and state.ledger.key == key:
            state = replace(state, ledger=state.ledger.salvage(incarnation, salvage))
        case PhaseClosed(key) if state.ledger and state.ledger.key == key:
            state = replace(state, ledger=state.ledger.close())
        case RunEnd():
            state = replace(state, ended=state.ended or event)
    state = _settle(state)
    return state, _commands(before, state)


# --- who belongs to the run ---
def _see(state: ClusterState, record: RankRecord) -> ClusterState:
    peer = state.peers.get(record.incarnation)
    if peer is None:
        return _admit(state, record)
    if not peer.is_alive or record.beat <= peer.beat:
        return state
    flags = {_key(text): flag for text, flag in record.flags.items()}
    peer = replace(peer, beat=record.beat, doing=record.doing, silent_s=0.0, flags={**peer.flags, **flags})
    if record.state == "left":
        peer = replace(peer, status="left", reason=record.reason)
    state = replace(state, peers={**state.peers, record.incarnation: peer})
    for key in flags:
        state = _open(state, key) if not peer.is_joiner else state
    ledger, work = state.ledger, record.work
    if ledger is not None and work is not None and ledger.key == (work.iteration, work.phase):
        state = replace(state, ledger=ledger.report(record.incarnation, peer.rank, work))
    return _refuse_for(state, peer)


def _admit(state: ClusterState, record: RankRecord) -> ClusterState:
    """Admit or refuse a node that is not a member, or let it wait for the end of a lease."""
    terms = state.terms
    if record.answers != terms.master or record.state == "left" or record.incarnation in state.refused:
        return state  # not alive now, as far as this record tells
    if record.config_digest != terms.config_digest:
        return _refuse(state, record, "its configuration differs from the master's; compare their plan.json")
    if record.is_joiner:
        highest = max([terms.num_nodes - 1, *(peer.rank for peer in state.peers.values())])
        return _add(state, record, highest + 1)
    rank = record.rank
    is_master = record.incarnation == terms.master
    if rank is None or not 0 <= rank < terms.num_nodes or (rank == 0) != is_master:
        own = f"1 to {terms.num_nodes - 1}" if terms.num_nodes > 1 else "none: it is a run of one node"
        return _refuse(state, record, f"rank {rank} is not one that this run waits for ({own})")
    holder = next((p for p in state.peers.values() if p.rank == rank and p.is_alive), None)
    if holder is None:
        return _add(state, record, rank)
    entry = state.newcomers.get(record.incarnation)
    beat = entry.holder_beat if entry and entry.holder == holder.incarnation else holder.beat
    newcomer = Newcomer(record, holder.incarnation, beat)
    return replace(state, newcomers={**state.newcomers, record.incarnation: newcomer})


def _add(state: ClusterState, record: RankRecord, rank: int) -> ClusterState:
    peer = Peer(
        record.incarnation, rank, record.host, record.process.pid, record.is_joiner, record.beat, record.doing
    )
    newcomers = {i: n for i, n in state.newcomers.items() if i != record.incarnation}
    return replace(state, peers={**state.peers, record.incarnation: peer}, newcomers=newcomers)


def _refuse(state: ClusterState, record: RankRecord, reason: str) -> ClusterState:
    newcomers = {i: n for i, n in state.newcomers.items() if i != record.incarnation}
    return replace(state, refused={**state.refused, record.incarnation: reason}, newcomers=newcomers)


def _refuse_for(state: ClusterState, holder: Peer) -> ClusterState:
    """Refuse the newcomers that want the rank of a member, because it sent a heartbeat."""
    for newcomer in list(state.newcomers.values()):
        if newcomer.holder == holder.incarnation and holder.is_alive and holder.beat > newcomer.holder_beat:
            taken = f"rank {holder.rank} is taken by process {holder.pid} on {holder.host}, which lives;"
            state = _refuse(state, newcomer.record, f"{taken} stop that one, or give this node another rank")
    return state


def _age(state: ClusterState, passed_s: float) -> ClusterState:
    peers = dict(state.peers)
    for incarnation, peer in state.peers.items():
        if not peer.is_alive or incarnation == state.terms.master:
            continue
        silent_s = peer.silent_s + passed_s
        peers[incarnation] = replace(peer, silent_s=silent_s)
        if silent_s > state.terms.lease_s:
            reason = f"silent for {silent_s:.0f} s, last at: {peer.doing}"
            peers[incarnation] = replace(peer, status="dead", reason=reason)
    return replace(state, peers=peers)


# --- what is done ---
def _order(state: ClusterState, key: PhaseKey, words: tuple[str, ...]) -> ClusterState:
    """Order a phase, or order it again for the nodes that are alive now if it was not decided."""
    if key in state.decisions:
        raise ValueError(f"{key} is decided already: {state.decisions[key].outcome}")
    seq = 1 + (state.order.seq if state.order else 0)
    order = PhaseOrder(
        seq=seq, iteration=key.iteration, phase=key.phase, words=words, participants=state.regular
    )
    barrier = Barrier(order.participants, seq)
    return replace(state, order=order, barriers={**state.barriers, key: barrier})


def _open(state: ClusterState, key: PhaseKey) -> ClusterState:
    """Open a phase within the present order, with the participants of that order, if it is not known yet."""
    if key in state.barriers or key in state.decisions:
        return state
    order = state.order
    participants = order.participants if order and order.key not in state.decisions else state.regular
    barrier = Barrier(participants, order.seq if order else 0)
    return replace(state, barriers={**state.barriers, key: barrier})


def _decide(state: ClusterState, key: PhaseKey, decision: Decision) -> ClusterState:
    if key in state.decisions:
        raise ValueError(f"{key} is decided already: {state.decisions[key].outcome}")
    barriers = {other: barrier for other, barrier in state.barriers.items() if other != key}
    return replace(state, decisions={**state.decisions, key: decision}, barriers=barriers)


def _settle(state: ClusterState) -> ClusterState:
    """Apply what follows from the state: admissions, chunks of lost nodes, decisions."""
    for newcomer in list(state.newcomers.values()):
        if not state.peers[newcomer.holder].is_alive:
            others = {i: n for i, n in state.newcomers.items() if n is not newcomer}
            state = _admit(replace(state, newcomers=others), newcomer.record)
    if state.ledger is not None and not state.ledger.is_closed:
        state = replace(state, ledger=_without_lost(state, state.ledger))
    for key, barrier in state.barriers.items():
        decision = barriers.decide(key, barrier, state.peers, state.terms.master)
        if decision is not None:
            state = _decide(state, key, decision)
    return state


def _without_lost(state: ClusterState, ledger: ChunkLedger) -> ChunkLedger:
    for incarnation in ledger.holders:
        peer = state.peers.get(incarnation)
        is_here = peer is not None and peer.is_alive
        has_ended = peer is not None and ledger.key in peer.flags and ledger.has_open(incarnation)
        if not is_here or has_ended:
            ledger = ledger.lose(incarnation)
    return ledger


def _key(text: str) -> PhaseKey:
    iteration, _, phase = text.partition("/")
    return PhaseKey(int(iteration), phase)


def _commands(before: ClusterState, after: ClusterState) -> list[Command]:
    """Return the commands that the change from one state to the next asks for."""
    commands: list[Command] = []
    for incarnation, peer in after.peers.items():
        earlier_peer = before.peers.get(incarnation)
        if earlier_peer is peer or incarnation == after.terms.master:
            continue
        if earlier_peer is None:
            commands.append(LogLine(f"{peer.name} has joined"))
        elif earlier_peer.status != peer.status:
            commands.append(
                LogLine(f"{peer.name} {'is dead' if peer.status == 'dead' else 'left'}: {peer.reason}")
            )
    for incarnation in after.refused.keys() - before.refused.keys():
        commands.append(LogLine(f"a node was refused: {after.refused[incarnation]}"))
    if after.decisions is not before.decisions:
        new = itertools.takewhile(lambda key: key not in before.decisions, reversed(after.decisions))
        commands += [WriteDecision(key, after.decisions[key]) for key in new]
    if after.ledger is not None and after.ledger is not before.ledger:
        commands += _chunk_commands(before.ledger, after.ledger)
    return commands


def _chunk_commands(before: ChunkLedger | None, after: ChunkLedger) -> list[Command]:
    earlier_ledger = before if before is not None and before.key == after.key else None
    num_known = len(earlier_ledger.batches) if earlier_ledger else 0
    new = enumerate(after.batches[num_known:], start=num_known)
    earlier_shards = earlier_ledger.unread_shards if earlier_ledger else []
    return [
        *(WriteBatch(after.key, number, batch) for number, batch in new),
        *(ReadShard(after.key, *lost) for lost in after.unread_shards if lost not in earlier_shards),
    ]
