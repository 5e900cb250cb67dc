"""The records that nodes exchange in the shared folder, and their paths.

    cluster/master.json                                     View             written by the master
    cluster/ranks/<run>/<attempt>/<incarnation>.json        RankRecord       written by that node
    flags/<run>/<attempt>/<iteration>/<phase>/
        rank-<r>.json                                       durable flag     written by that node
        decision.json                                       Decision         written by the master, once
        chunks-<master>-<n>.json                            Batch            written by the master, once
        claims-<master>/<chunk>                             Claim            created by the node that gets it

Every file has one writer. `<master>` is the master's incarnation, so that a second start of the same attempt
finds no file of the first.
"""

from typing import Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from rl_agent.cluster.protocol.chunks import Indices
from rl_agent.cluster.shared_fs.folder import Record
from rl_agent.system.processes import ProcessId

MASTER_FILE = "cluster/master.json"

TRAINING = "train"
"""Phases with this prefix need all their ranks: if one is lost, the phase ends as `lost`."""
COLLECTING = ("rollout", "evaluate")
"""Phases with these prefixes are made of chunks: nodes that come later may help."""

Outcome = Literal["done", "skipped", "failed", "lost"]
Status = Literal["alive", "dead", "left"]


class PhaseKey(NamedTuple):
    """A phase of an iteration; repeated tries of one phase differ in the number of their order."""

    iteration: int
    phase: str

    def __str__(self) -> str:
        return f"{self.iteration}/{self.phase}"

    @property
    def is_training(self) -> bool:
        return self.phase.startswith(TRAINING)

    @property
    def is_collecting(self) -> bool:
        return self.phase.startswith(COLLECTING)


class SharedRecord(BaseModel):
    """A record in the shared folder; one with other keys was written by another version and is ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_record(self) -> Record:
        return self.model_dump(mode="json")


class Flag(SharedRecord):
    """The report of a rank that has finished a phase."""

    outcome: Outcome
    words: tuple[str, ...] = ()
    seq: int
    """Number of the newest order that the rank knew then."""


class ChunkReport(SharedRecord):
    """The chunks of a phase that a rank has claimed and completed."""

    iteration: int
    phase: str
    shard: str | None
    """Name of the file in which it records; None before its first episode."""
    claimed: tuple[int, ...]
    completed: tuple[int, ...]


class RankRecord(SharedRecord):
    """The record of a node, rewritten with every heartbeat."""

    incarnation: str
    rank: int | None
    """None for a joiner that has no rank yet."""
    is_joiner: bool
    host: str
    process: ProcessId
    beat: int
    doing: str
    doing_s: float
    """Seconds since it began to do that, by its own clock."""
    config_digest: str
    state: Literal["waiting", "member", "left"]
    reason: str
    answers: str | None
    """Incarnation of the master that it sees, which proves that both live at the same time."""
    flags: dict[str, Flag]
    """The newest of them, by PhaseKey."""
    work: ChunkReport | None


class PhaseOrder(SharedRecord):
    """The instruction of the master to carry out a phase now."""

    seq: int
    iteration: int
    phase: str
    words: tuple[str, ...] = ()
    participants: dict[str, int]
    """Incarnation and rank of every node that the phase waits for."""

    @property
    def key(self) -> PhaseKey:
        return PhaseKey(self.iteration, self.phase)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.participants.values()))


class Decision(SharedRecord):
    """The outcome of a phase, decided once and never changed."""

    outcome: Outcome
    lost: tuple[str, ...] = ()
    """Participants that were lost before they had finished, and why."""
    words: tuple[str, ...] = ()
    """Arguments of the master for the other nodes."""


class MemberView(SharedRecord):
    """A member as the View shows it."""

    incarnation: str
    rank: int
    host: str
    weight: int
    is_joiner: bool
    status: Status
    reason: str

    @property
    def name(self) -> str:
        return f"rank {self.rank} ({self.host})"


class ChunkView(SharedRecord):
    """The number of batches of chunks that a phase has."""

    iteration: int
    phase: str
    batches: int
    is_closed: bool


class RunEnd(SharedRecord):
    """The exit status of a run, and the reason for it."""

    status: int
    reason: str


class View(SharedRecord):
    """The run as the master sees it. A node accepts one that names it, and never an older one."""

    number: int
    """One more with every change of a field below `beat`."""
    beat: int
    run_id: str
    attempt: int
    term: int
    """Higher than that of any master before in this log path."""
    master: str
    host: str
    heartbeat_s: float
    lease_s: float
    config_digest: str
    weights: tuple[int, ...]
    """Share of the rollout, of each rank that the run waits for."""
    members: tuple[MemberView, ...]
    refused: dict[str, str]
    order: PhaseOrder | None
    work: ChunkView | None
    decisions: dict[str, Decision]
    """The newest of them, by PhaseKey."""
    ended: RunEnd | None

    def member(self, incarnation: str) -> MemberView | None:
        return next((member for member in self.members if member.incarnation == incarnation), None)


class Batch(SharedRecord):
    """Chunks to claim; a later batch adds more, or replaces what lost nodes had not recorded."""

    first_id: int
    sample_digest: str
    weight_version: int
    chunks: tuple[Indices, ...]


class ChunkClaim(SharedRecord):
    """The claim of a node to a chunk."""

    incarnation: str
    rank: int


class ClusterPaths(NamedTuple):
    """Paths of the files of one attempt, relative to the log path."""

    run_id: str
    attempt: int

    @property
    def ranks(self) -> str:
        return f"cluster/ranks/{self.run_id}/{self.attempt}"

    def rank(self, incarnation: str) -> str:
        return f"{self.ranks}/{incarnation}.json"

    def phase(self, key: PhaseKey) -> str:
        return f"flags/{self.run_id}/{self.attempt}/{key.iteration}/{key.phase}"

    def flag(self, key: PhaseKey, rank: int) -> str:
        return f"{self.phase(key)}/rank-{rank}.json"

    def decision(self, key: PhaseKey) -> str:
        return f"{self.phase(key)}/decision.json"

    def batch(self, key: PhaseKey, master: str, number: int) -> str:
        return f"{self.phase(key)}/chunks-{master}-{number}.json"

    def claims(self, key: PhaseKey, master: str) -> str:
        return f"{self.phase(key)}/claims-{master}"


_Kind = TypeVar("_Kind", bound=SharedRecord)


def parse(kind: type[_Kind], record: Record | None) -> _Kind | None:
    """Parse a record; None if there is none, or it is not of this kind."""
    if record is None:
        return None
    try:
        return kind.model_validate(record)
    except ValidationError:
        return None
