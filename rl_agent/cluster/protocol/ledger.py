"""Who has which chunk of a phase, and what becomes of the chunks of a node that is gone. Pure.

    open ──► done       its owner is there and has recorded all of it
      └────► retired    its owner is gone; what it had not recorded is in a chunk of a later batch

A node is gone from a phase once it died, left, or finished with chunks undone. From then on nothing it says
counts: its file counts up to the byte where it was cut, once, and whatever it claims later is retired too.
So no episode is counted for two nodes, and none is forgotten.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Literal

from rl_agent.cluster.protocol.chunks import Indices, make_chunks
from rl_agent.cluster.protocol.records import Batch, PhaseKey, WorkReport


@dataclass(frozen=True, slots=True)
class Entry:
    """One chunk."""

    indices: Indices
    owner: str | None = None
    """Incarnation; None as long as nobody is known to have claimed it."""
    status: Literal["open", "done", "retired"] = "open"


@dataclass(frozen=True, slots=True)
class Holder:
    """A node that takes part."""

    rank: int
    shard: str | None


@dataclass(frozen=True, slots=True)
class Salvage:
    """What the file of a node that is gone holds."""

    cut_bytes: int
    recorded: AbstractSet[int]


@dataclass(frozen=True, slots=True)
class ShardPart:
    """A file of the iteration, and how much of it counts."""

    name: str
    rank: int
    incarnation: str
    cut_bytes: int | None
    """None: all of it."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The chunks of one phase; every method returns a new ledger."""

    key: PhaseKey
    sample_digest: str
    weight_version: int
    chunks: Mapping[int, Entry] = field(default_factory=dict)
    batches: tuple[Batch, ...] = ()
    holders: Mapping[str, Holder] = field(default_factory=dict)
    gone: Mapping[str, Salvage | None] = field(default_factory=dict)
    """Nodes that are gone; None until their file was read."""
    is_closed: bool = False

    def publish(self, groups: Sequence[Sequence[int]], chunk_tasks: int) -> "Ledger":
        """What there is to do, or more of it; what was published before is left out.

        Raises ValueError where the phase is closed: nobody would do it.
        """
        if self.is_closed:
            raise ValueError(f"{self.key} is closed, and nothing can be added to it")
        known = {index for entry in self.chunks.values() for index in entry.indices}
        new = [[index for index in group if index not in known] for group in groups]
        return self._with_batch(make_chunks(new, chunk_tasks), may_be_empty=not self.batches)

    @property
    def is_complete(self) -> bool:
        """Nothing is left to do, and of every file it is known how far it counts."""
        is_open = any(entry.status == "open" for entry in self.chunks.values())
        return not is_open and not self.to_salvage

    @property
    def to_salvage(self) -> list[tuple[str, str]]:
        """Incarnation and file of every node that is gone and whose file was not read yet."""
        found = [(incarnation, self.holders.get(incarnation)) for incarnation in self.unread]
        return [(incarnation, holder.shard) for incarnation, holder in found if holder and holder.shard]

    @property
    def unread(self) -> list[str]:
        return [incarnation for incarnation, salvage in self.gone.items() if salvage is None]

    @property
    def parts(self) -> list[ShardPart]:
        """The files that hold the phase, once it is complete."""
        found = []
        for incarnation, holder in self.holders.items():
            salvage = self.gone.get(incarnation)
            if holder.shard is not None and (salvage is None or salvage.cut_bytes):
                cut = None if salvage is None else salvage.cut_bytes
                found.append(ShardPart(holder.shard, holder.rank, incarnation, cut))
        return sorted(found, key=lambda part: (part.rank, part.name))

    def report(self, incarnation: str, rank: int, work: WorkReport) -> "Ledger":
        """What a node that is there says; nothing of what one that is gone says."""
        if incarnation in self.gone:
            return self
        changed: dict[int, Entry] = {}
        completed = set(work.completed)
        for chunk in work.claimed:
            entry = self.chunks.get(chunk)
            if entry is None or entry.status == "retired" or entry.owner not in (None, incarnation):
                continue
            after = Entry(entry.indices, incarnation, "done" if chunk in completed else entry.status)
            if after != entry:
                changed[chunk] = after
        holder = Holder(rank, work.shard)
        if not changed and self.holders.get(incarnation) == holder:
            return self
        return replace(self, chunks={**self.chunks, **changed}, holders={**self.holders, incarnation: holder})

    def claim(self, chunk: int, incarnation: str, rank: int) -> "Ledger":
        """A claim that lies on the shared folder."""
        entry = self.chunks.get(chunk)
        if entry is None or entry.owner is not None:
            return self
        claimed = replace(
            self,
            chunks={**self.chunks, chunk: replace(entry, owner=incarnation)},
            holders={incarnation: Holder(rank, None), **self.holders},
        )
        return claimed._retire(incarnation)

    def has_open(self, incarnation: str) -> bool:
        """Whether a node has claimed what it has not completed."""
        return any(entry.owner == incarnation and entry.status == "open" for entry in self.chunks.values())

    def lose(self, incarnation: str) -> "Ledger":
        """A node is gone. One that recorded nothing needs no reading."""
        if incarnation in self.gone:
            return self
        holder = self.holders.get(incarnation)
        salvage = None if holder and holder.shard else Salvage(0, frozenset())
        return replace(self, gone={**self.gone, incarnation: salvage})._retire(incarnation)

    def salvage(self, incarnation: str, salvage: Salvage) -> "Ledger":
        """How far the file of a node that is gone counts; the first word on that is the last."""
        if self.gone.get(incarnation, salvage) is not None:
            return self
        return replace(self, gone={**self.gone, incarnation: salvage})._retire(incarnation)

    def close(self) -> "Ledger":
        return replace(self, is_closed=True)

    def _retire(self, incarnation: str) -> "Ledger":
        """Of a node that is gone: what it has recorded is done, the rest goes into a new batch."""
        salvage = self.gone.get(incarnation)
        if salvage is None:
            return self
        changed: dict[int, Entry] = {}
        missing: list[Indices] = []
        for chunk, entry in self.chunks.items():
            if entry.owner != incarnation or entry.status == "retired":
                continue
            rest = tuple(index for index in entry.indices if index not in salvage.recorded)
            changed[chunk] = replace(entry, status="retired" if rest else "done")
            if rest:
                missing.append(rest)
        return replace(self, chunks={**self.chunks, **changed})._with_batch(missing, may_be_empty=False)

    def _with_batch(self, chunks: list[Indices], *, may_be_empty: bool) -> "Ledger":
        if not chunks and not may_be_empty:
            return self
        first = len(self.chunks)
        batch = Batch(
            first_id=first,
            sample_digest=self.sample_digest,
            weight_version=self.weight_version,
            chunks=tuple(chunks),
        )
        added = {first + offset: Entry(indices) for offset, indices in enumerate(chunks)}
        return replace(self, chunks={**self.chunks, **added}, batches=(*self.batches, batch))
