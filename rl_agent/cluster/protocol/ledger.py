"""Records which node has which chunk of a phase, and replaces the chunks of lost nodes. Pure.

    open ──► done       its owner is alive and has recorded all of it
      └────► retired    its owner is lost; episodes that it had not recorded are in a chunk of a later batch

A node is lost to a phase once it died, left, or finished with open chunks. From then on nothing that it
reports counts: its file counts up to the byte where the master cut it, and chunks that it claims later are
retired too. So every episode counts once.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Literal

from rl_agent.cluster.protocol.chunks import Indices, make_chunks
from rl_agent.cluster.protocol.records import Batch, ChunkReport, PhaseKey


@dataclass(frozen=True, slots=True)
class ChunkState:
    """One chunk, its owner and its status."""

    indices: Indices
    owner: str | None = None
    """Incarnation; None as long as no claim of it is known."""
    status: Literal["open", "done", "retired"] = "open"


@dataclass(frozen=True, slots=True)
class NodeShard:
    """A node that takes part, and the file in which it records."""

    rank: int
    shard: str | None


@dataclass(frozen=True, slots=True)
class Salvage:
    """The content of a lost node's file that counts."""

    cut_bytes: int
    recorded: AbstractSet[int]


@dataclass(frozen=True, slots=True)
class ShardExtent:
    """A file of the iteration, and how many of its bytes count."""

    name: str
    rank: int
    incarnation: str
    cut_bytes: int | None
    """None if all of it counts."""


@dataclass(frozen=True, slots=True)
class ChunkLedger:
    """The chunks of one phase; every method returns a new ledger."""

    key: PhaseKey
    sample_digest: str
    weight_version: int
    chunks: Mapping[int, ChunkState] = field(default_factory=dict)
    batches: tuple[Batch, ...] = ()
    holders: Mapping[str, NodeShard] = field(default_factory=dict)
    lost: Mapping[str, Salvage | None] = field(default_factory=dict)
    """Lost nodes; None until their file was read."""
    is_closed: bool = False

    def publish(self, groups: Sequence[Sequence[int]], chunk_tasks: int) -> "ChunkLedger":
        """Add chunks for groups, without episodes that were published before.

        Raises ValueError if the phase is closed: no node would run them.
        """
        if self.is_closed:
            raise ValueError(f"{self.key} is closed, and nothing can be added to it")
        published_indices = {index for entry in self.chunks.values() for index in entry.indices}
        new = [[index for index in group if index not in published_indices] for group in groups]
        return self._with_batch(make_chunks(new, chunk_tasks), may_be_empty=not self.batches)

    @property
    def is_complete(self) -> bool:
        """Return whether no chunk is open, and the file of every lost node was read."""
        is_open = any(entry.status == "open" for entry in self.chunks.values())
        return not is_open and not self.unread_shards

    @property
    def unread_shards(self) -> list[tuple[str, str]]:
        """Incarnation and file of every lost node whose file was not read yet."""
        unread = (incarnation for incarnation, salvage in self.lost.items() if salvage is None)
        holders = [(incarnation, self.holders.get(incarnation)) for incarnation in unread]
        return [(incarnation, holder.shard) for incarnation, holder in holders if holder and holder.shard]

    @property
    def extents(self) -> list[ShardExtent]:
        """The files that hold the phase, once it is complete."""
        extents = []
        for incarnation, holder in self.holders.items():
            salvage = self.lost.get(incarnation)
            if holder.shard is not None and (salvage is None or salvage.cut_bytes):
                cut = None if salvage is None else salvage.cut_bytes
                extents.append(ShardExtent(holder.shard, holder.rank, incarnation, cut))
        return sorted(extents, key=lambda part: (part.rank, part.name))

    def report(self, incarnation: str, rank: int, work: ChunkReport) -> "ChunkLedger":
        """Take the report of a node; that of a lost one is ignored."""
        if incarnation in self.lost:
            return self
        changed: dict[int, ChunkState] = {}
        completed = set(work.completed)
        for chunk in work.claimed:
            entry = self.chunks.get(chunk)
            if entry is None or entry.status == "retired" or entry.owner not in (None, incarnation):
                continue
            after = ChunkState(entry.indices, incarnation, "done" if chunk in completed else entry.status)
            if after != entry:
                changed[chunk] = after
        holder = NodeShard(rank, work.shard)
        if not changed and self.holders.get(incarnation) == holder:
            return self
        return replace(self, chunks={**self.chunks, **changed}, holders={**self.holders, incarnation: holder})

    def claim(self, chunk: int, incarnation: str, rank: int) -> "ChunkLedger":
        """Take a claim that was found in the shared folder."""
        entry = self.chunks.get(chunk)
        if entry is None or entry.owner is not None:
            return self
        claimed = replace(
            self,
            chunks={**self.chunks, chunk: replace(entry, owner=incarnation)},
            holders={incarnation: NodeShard(rank, None), **self.holders},
        )
        return claimed._retire(incarnation)

    def has_open(self, incarnation: str) -> bool:
        """Return whether a node has claimed a chunk and not completed it."""
        return any(entry.owner == incarnation and entry.status == "open" for entry in self.chunks.values())

    def lose(self, incarnation: str) -> "ChunkLedger":
        """Mark a node as lost; if it recorded nothing, there is no file to read."""
        if incarnation in self.lost:
            return self
        holder = self.holders.get(incarnation)
        salvage = None if holder and holder.shard else Salvage(0, frozenset())
        return replace(self, lost={**self.lost, incarnation: salvage})._retire(incarnation)

    def salvage(self, incarnation: str, salvage: Salvage) -> "ChunkLedger":
        """Record what counts of a lost node's file; this is decided once."""
        if self.lost.get(incarnation, salvage) is not None:
            return self
        return replace(self, lost={**self.lost, incarnation: salvage})._retire(incarnation)

    def close(self) -> "ChunkLedger":
        """Allow no more chunks."""
        return replace(self, is_closed=True)

    def _retire(self, incarnation: str) -> "ChunkLedger":
        """Retire the chunks of a lost node: what it has not recorded goes into a new batch."""
        salvage = self.lost.get(incarnation)
        if salvage is None:
            return self
        changed: dict[int, ChunkState] = {}
        missing: list[Indices] = []
        for chunk, entry in self.chunks.items():
            if entry.owner != incarnation or entry.status == "retired":
                continue
            rest = tuple(index for index in entry.indices if index not in salvage.recorded)
            changed[chunk] = replace(entry, status="retired" if rest else "done")
            if rest:
                missing.append(rest)
        return replace(self, chunks={**self.chunks, **changed})._with_batch(missing, may_be_empty=False)

    def _with_batch(self, chunks: list[Indices], *, may_be_empty: bool) -> "ChunkLedger":
        if not chunks and not may_be_empty:
            return self
        first = len(self.chunks)
        batch = Batch(
            first_id=first,
            sample_digest=self.sample_digest,
            weight_version=self.weight_version,
            chunks=tuple(chunks),
        )
        added = {first + offset: ChunkState(indices) for offset, indices in enumerate(chunks)}
        return replace(self, chunks={**self.chunks, **added}, batches=(*self.batches, batch))
