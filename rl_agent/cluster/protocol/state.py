"""The state of the master: the members of the run, the open phases, the chunks. Immutable."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rl_agent.cluster.protocol.barriers import Barrier
from rl_agent.cluster.protocol.ledger import ChunkLedger
from rl_agent.cluster.protocol.peer import Peer
from rl_agent.cluster.protocol.records import Decision, PhaseKey, PhaseOrder, RankRecord, RunEnd


@dataclass(frozen=True, slots=True)
class MasterTerms:
    """The values that do not change while the master lives."""

    master: str
    """Its incarnation."""
    num_nodes: int
    weights: tuple[int, ...]
    """Share of the rollout, of each rank that the run waits for."""
    heartbeat_s: float
    lease_s: float
    config_digest: str
    term: int = 1
    """Higher than that of any master before in this log path."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A node that asks for the rank of a member that may be dead or alive."""

    record: RankRecord
    holder: str
    holder_beat: int
    """Heartbeat of the holder when the newcomer came; if another one follows, the holder lives."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The run as its master knows it."""

    terms: MasterTerms
    now: float
    peers: Mapping[str, Peer] = field(default_factory=dict)
    newcomers: Mapping[str, Newcomer] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    order: PhaseOrder | None = None
    barriers: Mapping[PhaseKey, Barrier] = field(default_factory=dict)
    decisions: dict[PhaseKey, Decision] = field(default_factory=dict)
    ledger: ChunkLedger | None = None
    ended: RunEnd | None = None

    @property
    def regular(self) -> dict[str, int]:
        """Incarnation and rank of the members that phases wait for: those alive, without joiners."""
        return {p.incarnation: p.rank for p in self.peers.values() if p.is_alive and not p.is_joiner}

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks that no living member has."""
        return sorted(set(range(self.terms.num_nodes)) - set(self.regular.values()))

    @property
    def lost(self) -> list[Peer]:
        """The last members that had the missing ranks."""
        gone = {peer.rank: peer for peer in self.peers.values() if not peer.is_joiner}
        return [gone[rank] for rank in self.missing_ranks if rank in gone]
