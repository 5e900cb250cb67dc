"""What the nodes tell each other: the records on the shared folder, and where they lie.

    cluster/master.json                                     View             written by the master
    cluster/ranks/<run>/<attempt>/<incarnation>.json        RankRecord       written by that node
    flags/<run>/<attempt>/<iteration>/<phase>/
        rank-<r>.json                                       durable flag     written by that node
        decision.json                                       Decision         written by the master, once
        chunks-<master>-<n>.json                            Batch            written by the master, once
        claims-<master>/<chunk>                             Claim            created by the node that gets it

Every file has one writer. `<master>` is the master's incarnation, so that a second start of the same attempt
can find nothing of the first.
"""

from typing import Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from rl_agent.cluster.protocol.chunks import Indices
from rl_agent.cluster.shared_fs.folder import Record
from rl_agent.cluster.shared_fs.processes import ProcessId

MASTER_FILE = "cluster/master.json"

TRAINING = "train"
"""Phases whose name begins so need all their ranks to the end: one that is gone ends them as `lost`."""
COLLECTING = ("rollout", "evaluate")
"""Phases whose name begins so are made of chunks: whoever comes later may help."""

Outcome = Literal["done", "skipped", "failed", "lost"]
Status = Literal["alive", "dead", "left"]


class PhaseKey(NamedTuple):
    """A phase of an iteration. What is tried again under the same key is told apart by the order's number."""

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


class Shared(BaseModel):
    """A record of the shared folder; one with other keys is of another version and counts as absent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_record(self) -> Record:
        return self.model_dump(mode="json")


class Flag(Shared):
    """What a rank says when it has finished a phase."""

    outcome: Outcome
    words: tuple[str, ...] = ()
    seq: int
    """Number of the newest order that the rank knew."""


class WorkReport(Shared):
    """How far a rank is with the chunks of a phase."""

    iteration: int
    phase: str
    shard: str | None
    """Name of the file that it records in; None before its first episode."""
    claimed: tuple[int, ...]
    completed: tuple[int, ...]


class RankRecord(Shared):
    """What a node says about itself, again with every heartbeat."""

    incarnation: str
    rank: int | None
    """None: a joiner that has no rank yet."""
    is_joiner: bool
    host: str
    process: ProcessId
    beat: int
    doing: str
    doing_s: float
    """Seconds since it began with that, by its own clock."""
    config_digest: str
    state: Literal["waiting", "member", "left"]
    reason: str
    answers: str | None
    """Incarnation of the master that it sees: proof that it lives at the same time as that one."""
    flags: dict[str, Flag]
    """By PhaseKey, the newest of them."""
    work: WorkReport | None
    stacks: str | None
    """Where this process writes its stacks on SIGUSR1."""


class Order(Shared):
    """The phase that the master wants carried out now."""

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


class Decision(Shared):
    """What became of a phase; made once, and never changed."""

    outcome: Outcome
    lost: tuple[str, ...] = ()
    """Participants that were gone before they had finished, and why."""
    words: tuple[str, ...] = ()
    """What the master has to say to the others along with it."""


class MemberView(Shared):
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


class WorkView(Shared):
    """How many batches of chunks a phase has."""

    iteration: int
    phase: str
    batches: int
    is_closed: bool


class Ended(Shared):
    status: int
    reason: str


class View(Shared):
    """The run as the master sees it. A node accepts one that names it, and never an older one."""

    number: int
    """+1 with every change of what follows `beat`."""
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
    """Of the ranks that the run waits for."""
    members: tuple[MemberView, ...]
    refused: dict[str, str]
    order: Order | None
    work: WorkView | None
    decisions: dict[str, Decision]
    """By PhaseKey, the newest of them."""
    ended: Ended | None

    def member(self, incarnation: str) -> MemberView | None:
        return next((member for member in self.members if member.incarnation == incarnation), None)


class Batch(Shared):
    """Chunks to claim; a later batch adds to them, or replaces what nodes that are gone had not recorded."""

    first_id: int
    sample_digest: str
    weight_version: int
    chunks: tuple[Indices, ...]


class Claim(Shared):
    incarnation: str
    rank: int


class Places(NamedTuple):
    """Names of the files of one attempt, relative to the log path."""

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


_Kind = TypeVar("_Kind", bound=Shared)


def parse(kind: type[_Kind], record: Record | None) -> _Kind | None:
    """None for what is not there, or is no such record."""
    if record is None:
        return None
    try:
        return kind.model_validate(record)
    except ValidationError:
        return None
