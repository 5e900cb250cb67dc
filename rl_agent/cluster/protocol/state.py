"""What the master knows: the members of the run, the phases that are open, the chunks. Immutable."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rl_agent.cluster.protocol.barriers import Barrier
from rl_agent.cluster.protocol.ledger import Ledger
from rl_agent.cluster.protocol.records import Decision, Ended, Flag, Order, PhaseKey, RankRecord, Status


@dataclass(frozen=True, slots=True)
class Terms:
    """What does not change while the master lives."""

    master: str
    num_nodes: int
    lease_s: float
    config_digest: str


@dataclass(frozen=True, slots=True)
class Peer:
    """A member as the master sees it."""

    incarnation: str
    rank: int
    host: str
    pid: int
    is_joiner: bool
    beat: int
    doing: str
    status: Status = "alive"
    reason: str = ""
    silent_s: float = 0.0
    flags: Mapping[PhaseKey, Flag] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"rank {self.rank} ({self.host})"

    @property
    def is_alive(self) -> bool:
        return self.status == "alive"


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A node that asks for the rank of a member that may be dead, and may be not."""

    record: RankRecord
    holder: str
    holder_beat: int
    """When it came; if the member beats once more, it lives."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    terms: Terms
    now: float
    peers: Mapping[str, Peer] = field(default_factory=dict)
    newcomers: Mapping[str, Newcomer] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    order: Order | None = None
    barriers: Mapping[PhaseKey, Barrier] = field(default_factory=dict)
    decisions: dict[PhaseKey, Decision] = field(default_factory=dict)
    ledger: Ledger | None = None
    ended: Ended | None = None

    @property
    def regular(self) -> dict[str, int]:
        """Incarnation and rank of the members that phases wait for: alive, and not joiners."""
        return {p.incarnation: p.rank for p in self.peers.values() if p.is_alive and not p.is_joiner}

    @property
    def missing_ranks(self) -> list[int]:
        return sorted(set(range(self.terms.num_nodes)) - set(self.regular.values()))

    @property
    def lost(self) -> list[Peer]:
        """Who had the missing ranks last."""
        gone = {peer.rank: peer for peer in self.peers.values() if not peer.is_joiner}
        return [gone[rank] for rank in self.missing_ranks if rank in gone]

    def names(self, incarnations: Mapping[str, int]) -> list[str]:
        found = sorted((self.peers[incarnation] for incarnation in incarnations), key=lambda peer: peer.rank)
        return [peer.name for peer in found]
