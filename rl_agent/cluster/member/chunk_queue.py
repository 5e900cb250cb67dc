"""The chunks of one collecting phase, as one node claims and completes them.

    master      publish ─► … ─► publish more ─► … ─► all_complete ─► close
    everybody   next_chunk ─► run it ─► report ─► next_chunk ─► … ─► None ─► more_or_closed ─► True: again
                                                                                          └─► False: done

A node claims a chunk by creating `claims/<chunk>`; of all nodes that try, one succeeds. It claims chunks that
are meant for others only once at most half of its own share is unfinished, so that the shares hold where
every node is as fast as its weight says. A joiner has no share and claims what it can run. The next heartbeat
reports to the master what was claimed and completed. A phase that was interrupted on this node (it lost its
engine) and starts again continues here: chunks that were claimed and not completed come first.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rl_agent.cluster.member.coordinator import Coordinator, ReadLostShard
from rl_agent.cluster.protocol import records
from rl_agent.cluster.protocol.chunks import Indices, claim_order
from rl_agent.cluster.protocol.events import ChunksPublished, PhaseClosed
from rl_agent.cluster.protocol.ledger import ChunkLedger, ShardExtent
from rl_agent.cluster.protocol.records import (
    Batch,
    ChunkClaim,
    ChunkReport,
    ChunkView,
    ClusterPaths,
    PhaseKey,
    View,
)
from rl_agent.cluster.shared_fs.folder import Folder
from rl_agent.errors import RetryLater

_LISTING_S = 0.5


@dataclass(frozen=True, slots=True)
class ClaimedChunk:
    """Episodes to run, by their positions in the sample."""

    id: int
    indices: Indices


class QueueOwner(Protocol):
    """The node that the chunks belong to, as they see it: a `Member`."""

    coordinator: Coordinator | None
    """The master's coordinator; other members have none."""
    clock: Callable[[], float]
    incarnation: str

    @property
    def rank(self) -> int: ...
    @property
    def view(self) -> View | None: ...
    def check(self) -> None: ...
    def notify(self) -> None: ...
    def report(self, *, now: bool) -> None: ...
    def has_decision(self, key: PhaseKey) -> bool: ...
    def others_straggling(self, key: PhaseKey) -> str: ...
    async def wait_async(self, what: str, is_ready: Callable[[], bool], who: Callable[[], str]) -> None: ...


class ChunkQueue:
    """The chunks of one phase on one node; lives as long as its member."""

    def __init__(
        self, key: PhaseKey, node: QueueOwner, folder: Folder, paths: ClusterPaths, *, chunk_tasks: int
    ) -> None:
        self.key = key
        self.shard: str | None = None
        """Name of the file in which this node records its episodes."""
        self.sample_digest: str | None = None
        """Digest of the sample that the chunks index; known with the first batch."""
        self.weight_version: int | None = None
        self._node = node
        self._folder = folder
        self._paths = paths
        self._chunk_tasks = chunk_tasks
        self._indices: dict[int, Indices] = {}
        self._batches = 0
        self._again: deque[int] = deque()
        self._own: deque[int] = deque()
        self._others: deque[int] = deque()
        self._taken: set[int] = set()
        self._next_listing = 0.0
        self._lock = threading.Lock()
        self._claimed: set[int] = set()
        self._completed: set[int] = set()
        self._share = 0
        """Episodes that are meant for this node."""
        self._unfinished = 0
        """Episodes that it has claimed and not reported."""

    def restart(self) -> None:
        """Start the phase again on this node: chunks that it claimed and did not complete come first."""
        self._again = deque(sorted(self._claimed - self._completed))

    # --- everybody ---
    def set_shard(self, name: str) -> None:
        """Report the node's file before its first episode: if the node dies, the master must find it."""
        if name != self.shard:
            self.shard = name
            self._node.report(now=True)

    async def next_chunk(self) -> ClaimedChunk | None:
        """Claim a chunk; None if none is left to claim now. Raises RetryLater like `Member.check`."""
        self._node.check()
        return await asyncio.to_thread(self.claim)

    def claim(self) -> ClaimedChunk | None:
        """Do the same as `next_chunk` in this thread, without the check."""
        if self._again:
            return self._chunk(self._again.popleft())
        self._load_batches()
        while self._own or self._others:
            is_own = bool(self._own)
            if not is_own:
                if not self._may_help:
                    return None
                self._list_claims()
            chunk = (self._own if is_own else self._others).popleft()
            if chunk not in self._taken and self._create_claim(chunk):
                with self._lock:
                    self._claimed.add(chunk)
                    self._unfinished += len(self._indices[chunk])
                return self._chunk(chunk)
        return None

    async def more_or_closed(self) -> bool:
        """Wait; True once there is more to claim, False once the phase is closed."""
        await self._until(self._is_more_or_closed)
        return not self._is_closed

    def report(self, chunk_id: int) -> None:
        """Complete a claimed chunk, all of whose episodes are recorded and durable."""
        if chunk_id not in self._claimed:
            raise ValueError(f"chunk {chunk_id} of {self.key} was not claimed here")
        with self._lock:
            if chunk_id not in self._completed:
                self._unfinished -= len(self._indices[chunk_id])
            self._completed.add(chunk_id)
            is_idle = self._completed == self._claimed and not (self._own or self._others)
        self._node.report(now=is_idle)
        if self._others and self._may_help:
            self._node.notify()

    def summary(self) -> ChunkReport:
        """Return what every heartbeat reports to the master."""
        with self._lock:
            claimed, completed = tuple(sorted(self._claimed)), tuple(sorted(self._completed))
        iteration, phase = self.key
        return ChunkReport(
            iteration=iteration, phase=phase, shard=self.shard, claimed=claimed, completed=completed
        )

    # --- the master ---
    @property
    def is_published(self) -> bool:
        """Return whether the phase was cut into chunks already."""
        return self._ledger is not None

    @property
    def on_lost(self) -> ReadLostShard:
        """The function that reads the file of a lost node: the bytes that count, and the episodes in them."""
        return self._master.on_lost[self.key]

    @on_lost.setter
    def on_lost(self, read: ReadLostShard) -> None:
        self._master.on_lost[self.key] = read

    async def publish(self, groups: Sequence[Sequence[int]], *, digest: str, weight_version: int) -> None:
        """Cut the phase into chunks; the episodes of one task (a group) stay together.

        Called again before the phase is closed, it adds the groups that were not published before.
        """
        # Chunks that are added are small: one node would take a large one, and the others none.
        chunk_tasks = 1 if self.is_published else self._chunk_tasks
        published = ChunksPublished(self.key, groups, chunk_tasks, digest, weight_version)
        await asyncio.to_thread(self._master.apply, published)

    async def all_complete(self) -> list[ShardExtent]:
        """Wait until every chunk is completed or replaced; return the files that hold the phase."""
        await self._until(self._is_complete)
        ledger = self._ledger
        return ledger.extents if ledger is not None else []

    def close(self) -> None:
        """End the phase: `more_or_closed` returns False on every node."""
        self._master.apply(PhaseClosed(self.key))
        self._master.on_lost.pop(self.key, None)

    # --- within ---
    @property
    def _master(self) -> Coordinator:
        if self._node.coordinator is None:
            raise ValueError("only the master publishes and closes")
        return self._node.coordinator

    @property
    def _ledger(self) -> ChunkLedger | None:
        return self._node.coordinator.ledger(self.key) if self._node.coordinator else None

    async def _until(self, is_ready: Callable[[], bool]) -> None:
        what = f"iteration {self.key.iteration}, {self.key.phase}"
        await self._node.wait_async(what, is_ready, lambda: self._node.others_straggling(self.key))

    def _is_complete(self) -> bool:
        ledger = self._ledger
        return ledger is not None and ledger.is_complete

    @property
    def _view(self) -> ChunkView | None:
        work = self._node.view.work if self._node.view else None
        return work if work is not None and (work.iteration, work.phase) == self.key else None

    @property
    def _is_closed(self) -> bool:
        view, work = self._node.view, self._view
        is_over = work is not None and work.is_closed
        return is_over or self._node.has_decision(self.key) or (view is not None and view.ended is not None)

    def _is_more_or_closed(self) -> bool:
        self._load_batches()
        return bool(self._again or self._own or (self._others and self._may_help)) or self._is_closed

    @property
    def _may_help(self) -> bool:
        return self._unfinished <= self._share / 2 or not self._share

    def _load_batches(self) -> None:
        """Load new chunks; a batch that the shared folder does not show yet is tried again later."""
        work, view = self._view, self._node.view
        while work is not None and view is not None and self._batches < work.batches:
            name = self._paths.batch(self.key, view.master, self._batches)
            batch = records.parse(Batch, self._folder.read(name))
            if batch is None:
                return
            self._batches += 1
            self.sample_digest, self.weight_version = batch.sample_digest, batch.weight_version
            self._indices |= dict(enumerate(batch.chunks, start=batch.first_id))
            count = len(batch.chunks)
            own, others = claim_order(count, view.weights, self._node.rank, first=batch.first_id)
            self._own.extend(own)
            self._share += sum(len(self._indices[chunk]) for chunk in own)
            self._others.extend(others)

    def _chunk(self, chunk: int) -> ClaimedChunk:
        return ClaimedChunk(chunk, self._indices[chunk])

    @property
    def _claims(self) -> str:
        if self._node.view is None:
            raise RetryLater("this node is not a member of the run")
        return self._paths.claims(self.key, self._node.view.master)

    def _create_claim(self, chunk: int) -> bool:
        claim = ChunkClaim(incarnation=self._node.incarnation, rank=self._node.rank)
        return self._folder.create_exclusive(f"{self._claims}/{chunk}", claim.to_record())

    def _list_claims(self) -> None:
        """List what others claimed, which saves tries that would fail; a late listing only costs a try."""
        now = self._node.clock()
        if now >= self._next_listing:
            self._next_listing = now + _LISTING_S
            self._taken = {int(name) for name in self._folder.names(self._claims) if name.isdigit()}
