"""The events that the master decides about, and the commands that carry out its decisions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rl_agent.cluster.protocol.ledger import Salvage
from rl_agent.cluster.protocol.records import Batch, Decision, Outcome, PhaseKey, RankRecord, RunEnd


# --- what happens ---
@dataclass(frozen=True, slots=True)
class RecordChanged:
    """A node's record has changed."""

    record: RankRecord


@dataclass(frozen=True, slots=True)
class Polled:
    """The records of all nodes were read; time has passed for those that did not change."""


@dataclass(frozen=True, slots=True)
class PhaseOrdered:
    """The master orders a phase."""

    key: PhaseKey
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OrderRegrouped:
    """The order continues with those of its participants that are alive now."""


@dataclass(frozen=True, slots=True)
class DecisionAwaited:
    """The master waits for the decision of a phase, so the phase is opened if it was not."""

    key: PhaseKey


@dataclass(frozen=True, slots=True)
class PhaseDecided:
    """The master decides a phase without waiting for flags."""

    key: PhaseKey
    outcome: Outcome
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChunksPublished:
    """The groups of episodes that a phase has to run are published, or more of them."""

    key: PhaseKey
    groups: Sequence[Sequence[int]]
    chunk_tasks: int
    sample_digest: str
    weight_version: int


@dataclass(frozen=True, slots=True)
class ClaimFound:
    """A claim was found in the shared folder."""

    key: PhaseKey
    chunk: int
    incarnation: str
    rank: int


@dataclass(frozen=True, slots=True)
class ShardRead:
    """The file of a lost node was read."""

    key: PhaseKey
    incarnation: str
    salvage: Salvage


@dataclass(frozen=True, slots=True)
class PhaseClosed:
    """No more chunks will be added to a phase."""

    key: PhaseKey


Event: TypeAlias = (
    RecordChanged
    | Polled
    | PhaseOrdered
    | OrderRegrouped
    | DecisionAwaited
    | PhaseDecided
    | ChunksPublished
    | ClaimFound
    | ShardRead
    | PhaseClosed
    | RunEnd
)


# --- what is to be done ---
@dataclass(frozen=True, slots=True)
class WriteDecision:
    """Write a decision, durably."""

    key: PhaseKey
    decision: Decision


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Write a batch of chunks."""

    key: PhaseKey
    number: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class ReadShard:
    """Find out how many bytes of a lost node's file count; the answer is the event `ShardRead`."""

    key: PhaseKey
    incarnation: str
    shard: str


@dataclass(frozen=True, slots=True)
class LogLine:
    """Log a line for the person who runs the master."""

    line: str


Command: TypeAlias = WriteDecision | WriteBatch | ReadShard | LogLine
