"""What the master publishes of its state. Pure."""

import itertools

from rl_agent.cluster.protocol.records import Decision, MemberView, PhaseKey, Places, View, WorkView
from rl_agent.cluster.protocol.state import ClusterState

_NEWEST = 16
"""Decisions and refusals shown; a node that is further behind finds its decision in the phase's folder."""
_NEWEST_GONE = 64


def view_of(
    state: ClusterState,
    places: Places,
    *,
    weights: tuple[int, ...],
    heartbeat_s: float,
    term: int,
    number: int = 0,
    beat: int = 0,
) -> View:
    ledger, terms = state.ledger, state.terms
    work = None
    if ledger is not None:
        iteration, phase = ledger.key
        closed = ledger.is_closed
        work = WorkView(iteration=iteration, phase=phase, batches=len(ledger.batches), is_closed=closed)
    return View(
        number=number,
        beat=beat,
        run_id=places.run_id,
        attempt=places.attempt,
        term=term,
        master=terms.master,
        host=state.peers[terms.master].host,
        heartbeat_s=heartbeat_s,
        lease_s=terms.lease_s,
        config_digest=terms.config_digest,
        weights=weights,
        members=_members(state, weights),
        refused=dict(itertools.islice(reversed(state.refused.items()), _NEWEST)),
        order=state.order,
        work=work,
        decisions=_newest(state.decisions),
        ended=state.ended,
    )


def _members(state: ClusterState, weights: tuple[int, ...]) -> tuple[MemberView, ...]:
    gone = [peer for peer in state.peers.values() if not peer.is_alive][-_NEWEST_GONE:]
    here = [peer for peer in state.peers.values() if peer.is_alive]
    return tuple(
        MemberView(
            incarnation=peer.incarnation,
            rank=peer.rank,
            host=peer.host,
            weight=1 if peer.is_joiner else weights[peer.rank],
            is_joiner=peer.is_joiner,
            status=peer.status,
            reason=peer.reason,
        )
        for peer in sorted((*here, *gone), key=lambda peer: peer.rank)
    )


def _newest(decisions: dict[PhaseKey, Decision]) -> dict[str, Decision]:
    newest = itertools.islice(reversed(decisions.items()), _NEWEST)
    return {str(key): decision for key, decision in newest}
