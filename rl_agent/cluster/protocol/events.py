"""What the master sees and is asked for (events), and what it does about it (commands)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rl_agent.cluster.protocol.ledger import Salvage
from rl_agent.cluster.protocol.records import Batch, Decision, Ended, Outcome, PhaseKey, RankRecord


# --- what happens ---
@dataclass(frozen=True, slots=True)
class Seen:
    """A node's record has changed."""

    record: RankRecord


@dataclass(frozen=True, slots=True)
class Looked:
    """Every record was read, and those that changed were told: time has passed for the others."""


@dataclass(frozen=True, slots=True)
class Ordered:
    key: PhaseKey
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Regrouped:
    """The order goes on with those of its participants that are alive now."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """Somebody waits for the decision of a phase, so there will be one."""

    key: PhaseKey


@dataclass(frozen=True, slots=True)
class Decided:
    """The master decides by itself."""

    key: PhaseKey
    outcome: Outcome
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """The groups of episodes that a phase is to run, or more of them."""

    key: PhaseKey
    groups: Sequence[Sequence[int]]
    chunk_tasks: int
    sample_digest: str
    weight_version: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim lies on the shared folder."""

    key: PhaseKey
    chunk: int
    incarnation: str
    rank: int


@dataclass(frozen=True, slots=True)
class Salvaged:
    key: PhaseKey
    incarnation: str
    salvage: Salvage


@dataclass(frozen=True, slots=True)
class Closed:
    key: PhaseKey


Event: TypeAlias = (
    Seen | Looked | Ordered | Regrouped | Awaited | Decided | Published | Claimed | Salvaged | Closed | Ended
)


# --- what is to be done ---
@dataclass(frozen=True, slots=True)
class WriteDecision:
    key: PhaseKey
    decision: Decision


@dataclass(frozen=True, slots=True)
class WriteBatch:
    key: PhaseKey
    number: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class ReadShard:
    """Find out how far the file of a node that is gone counts; the answer is `Salvaged`."""

    key: PhaseKey
    incarnation: str
    shard: str


@dataclass(frozen=True, slots=True)
class Say:
    line: str


Command: TypeAlias = WriteDecision | WriteBatch | ReadShard | Say
