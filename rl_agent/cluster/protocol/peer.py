"""A member of a run, as its master sees it. Immutable."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rl_agent.cluster.protocol.records import Flag, PhaseKey, Status


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
