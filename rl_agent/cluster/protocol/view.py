"""Makes the View that the master publishes from its state. Pure."""

import itertools

from rl_agent.cluster.protocol.records import ChunkView, ClusterPaths, MemberView, View
from rl_agent.cluster.protocol.state import ClusterState

_NEWEST = 16
"""Decisions and refusals in a View; a node further behind reads its decision in the phase's folder."""
_NEWEST_GONE = 64


def view_of(state: ClusterState, paths: ClusterPaths, last: View | None = None) -> View:
    """Make the View of a state, numbered as the last one: it is equal to that where nothing has changed."""
    ledger, terms = state.ledger, state.terms
    work = None
    if ledger is not None:
        iteration, phase = ledger.key
        batches, is_closed = len(ledger.batches), ledger.is_closed
        work = ChunkView(iteration=iteration, phase=phase, batches=batches, is_closed=is_closed)
    decisions = itertools.islice(reversed(state.decisions.items()), _NEWEST)
    return View(
        number=last.number if last else 0,
        beat=last.beat if last else 0,
        run_id=paths.run_id,
        attempt=paths.attempt,
        term=terms.term,
        master=terms.master,
        host=state.peers[terms.master].host,
        heartbeat_s=terms.heartbeat_s,
        lease_s=terms.lease_s,
        config_digest=terms.config_digest,
        weights=terms.weights,
        members=_members(state),
        refused=dict(itertools.islice(reversed(state.refused.items()), _NEWEST)),
        order=state.order,
        work=work,
        decisions={str(key): decision for key, decision in decisions},
        ended=state.ended,
    )


def _members(state: ClusterState) -> tuple[MemberView, ...]:
    gone = [peer for peer in state.peers.values() if not peer.is_alive][-_NEWEST_GONE:]
    here = [peer for peer in state.peers.values() if peer.is_alive]
    return tuple(
        MemberView(
            incarnation=peer.incarnation,
            rank=peer.rank,
            host=peer.host,
            weight=1 if peer.is_joiner else state.terms.weights[peer.rank],
            is_joiner=peer.is_joiner,
            status=peer.status,
            reason=peer.reason,
        )
        for peer in sorted((*here, *gone), key=lambda peer: peer.rank)
    )
