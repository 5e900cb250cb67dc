"""The chunks of one collecting phase, as one node sees them.

    master      publish ─► … ─► publish more ─► … ─► all_complete ─► close
    everybody   next_chunk ─► run it ─► report ─► next_chunk ─► … ─► None ─► more_or_closed ─► True: again
                                                                                          └─► False: done

A node claims a chunk by creating `claims/<chunk>`; of all that try, one succeeds. It takes those that are
meant for others only when it is half idle itself, so that the shares hold where every node is as fast as its
weight says; a joiner, for which none are meant, takes what it can run. It tells the master with its next beat
what it has claimed and completed. A phase that was broken off on this node (its engine was lost) and is begun
again goes on here: what was claimed and not reported comes first.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rl_agent.cluster.member.coordinator import Coordinator, OnLost
from rl_agent.cluster.protocol import records
from rl_agent.cluster.protocol.chunks import Indices, claim_order
from rl_agent.cluster.protocol.events import Closed, Published
from rl_agent.cluster.protocol.ledger import Ledger, ShardPart
from rl_agent.cluster.protocol.records import Batch, Claim, PhaseKey, Places, View, WorkReport, WorkView
from rl_agent.cluster.shared_fs.folder import Folder
from rl_agent.errors import RetryLater

__all__ = ["Chunk", "ShardPart", "Work"]

_LISTING_S = 0.5


@dataclass(frozen=True, slots=True)
class Chunk:
    """Episodes to run, by their place in the sample."""

    id: int
    indices: Indices


class Node(Protocol):
    """What the chunks need of `member.Member`."""

    @property
    def incarnation(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def view(self) -> View | None: ...
    def check(self) -> None: ...
    def clock(self) -> float: ...
    def tell(self, *, now: bool) -> None: ...
    def ring(self) -> None: ...
    async def wait_async(self, what: str, is_ready: Callable[[], bool], who: Callable[[], str]) -> None: ...
    def has_decision(self, key: PhaseKey) -> bool: ...
    def others_straggling(self, key: PhaseKey) -> str: ...


class Work:
    """Of one node; lives as long as its member."""

    def __init__(
        self,
        key: PhaseKey,
        node: Node,
        *,
        folder: Folder,
        places: Places,
        chunk_tasks: int,
        coordinator: Coordinator | None,
    ) -> None:
        self.key = key
        self.sample_digest: str | None = None
        """Of the sample that the chunks index; known with the first batch."""
        self.weight_version: int | None = None
        self._node = node
        self._folder = folder
        self._places = places
        self._chunk_tasks = chunk_tasks
        self._coordinator = coordinator
        self._shard: str | None = None
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
        """The node begins with the phase again: chunks that it did not complete come first."""
        self._again = deque(sorted(self._claimed - self._completed))

    # --- everybody ---
    @property
    def shard(self) -> str | None:
        """Name of the file that this node has begun."""
        return self._shard

    def set_shard(self, name: str) -> None:
        """Before the first episode is recorded there: the file of a node that dies has to be known."""
        if name != self._shard:
            self._shard = name
            self._node.tell(now=True)

    async def next_chunk(self) -> Chunk | None:
        """Claim a chunk; None if nothing is left to claim now. Raises RetryLater like `Member.check`."""
        self._node.check()
        return await asyncio.to_thread(self.claim)

    def claim(self) -> Chunk | None:
        """`next_chunk` without the check, in this thread."""
        if self._again:
            return self._chunk(self._again.popleft())
        self._load_batches()
        while self._own or self._others:
            is_own = bool(self._own)
            if not is_own:
                if not self._may_help:
                    return None
                self._look_who_claimed()
            chunk = (self._own if is_own else self._others).popleft()
            if chunk not in self._taken and self._create_claim(chunk):
                with self._lock:
                    self._claimed.add(chunk)
                    self._unfinished += len(self._indices[chunk])
                return self._chunk(chunk)
        return None

    async def more_or_closed(self) -> bool:
        """Wait: True once there is more to claim, False once the phase is closed."""
        await self._until(self._is_more_or_closed)
        return not self._is_closed

    def report(self, chunk_id: int) -> None:
        """All episodes of a claimed chunk are recorded, and durable."""
        if chunk_id not in self._claimed:
            raise ValueError(f"chunk {chunk_id} of {self.key} was not claimed here")
        with self._lock:
            if chunk_id not in self._completed:
                self._unfinished -= len(self._indices[chunk_id])
            self._completed.add(chunk_id)
            is_idle = self._completed == self._claimed and not (self._own or self._others)
        self._node.tell(now=is_idle)
        if self._others and self._may_help:
            self._node.ring()

    def summary(self) -> WorkReport:
        """What the master is told with every beat."""
        with self._lock:
            claimed, completed = tuple(sorted(self._claimed)), tuple(sorted(self._completed))
        iteration, phase = self.key
        return WorkReport(
            iteration=iteration, phase=phase, shard=self._shard, claimed=claimed, completed=completed
        )

    # --- the master ---
    @property
    def is_published(self) -> bool:
        return self._ledger is not None

    @property
    def on_lost(self) -> OnLost:
        """Tells of the file of a node that is gone how many bytes count, and which episodes they hold."""
        return self._master.on_lost[self.key]

    @on_lost.setter
    def on_lost(self, read: OnLost) -> None:
        self._master.on_lost[self.key] = read

    async def publish(self, groups: Sequence[Sequence[int]], *, digest: str, weight_version: int) -> None:
        """Cut the phase into chunks. A group is the episodes of one task, and stays together.

        May be called again while the phase is not closed: groups that were not published before are added.
        """
        # What comes later comes a few at a time: one node would have all of it, and the others none.
        chunk_tasks = 1 if self.is_published else self._chunk_tasks
        published = Published(self.key, groups, chunk_tasks, digest, weight_version)
        await asyncio.to_thread(self._master.apply, published)

    async def all_complete(self) -> list[ShardPart]:
        """Wait until every chunk is completed, or retired and replaced: the files that hold the phase."""
        await self._until(self._is_complete)
        ledger = self._ledger
        return ledger.parts if ledger is not None else []

    def close(self) -> None:
        """Nothing more will come: everybody's `more_or_closed` ends."""
        self._master.apply(Closed(self.key))
        self._master.on_lost.pop(self.key, None)

    # --- within ---
    @property
    def _master(self) -> Coordinator:
        if self._coordinator is None:
            raise ValueError("only the master publishes and closes")
        return self._coordinator

    @property
    def _ledger(self) -> Ledger | None:
        return self._coordinator.ledger(self.key) if self._coordinator else None

    async def _until(self, is_ready: Callable[[], bool]) -> None:
        what = f"iteration {self.key.iteration}, {self.key.phase}"
        await self._node.wait_async(what, is_ready, lambda: self._node.others_straggling(self.key))

    def _is_complete(self) -> bool:
        ledger = self._ledger
        return ledger is not None and ledger.is_complete

    @property
    def _view(self) -> WorkView | None:
        view = self._node.view
        work = view.work if view else None
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
        """New chunks; where the shared folder does not show a batch yet, it is tried again later."""
        work, view = self._view, self._node.view
        while work is not None and view is not None and self._batches < work.batches:
            name = self._places.batch(self.key, view.master, self._batches)
            batch = records.parse(Batch, self._folder.read(name))
            if batch is None:
                return
            self._batches += 1
            self.sample_digest, self.weight_version = batch.sample_digest, batch.weight_version
            for offset, indices in enumerate(batch.chunks):
                self._indices[batch.first_id + offset] = indices
            count = len(batch.chunks)
            own, others = claim_order(count, view.weights, self._node.rank, first=batch.first_id)
            self._own.extend(own)
            self._share += sum(len(self._indices[chunk]) for chunk in own)
            self._others.extend(others)

    def _chunk(self, chunk: int) -> Chunk:
        return Chunk(chunk, self._indices[chunk])

    @property
    def _claims(self) -> str:
        view = self._node.view
        if view is None:
            raise RetryLater("this node is not a member of the run")
        return self._places.claims(self.key, view.master)

    def _create_claim(self, chunk: int) -> bool:
        claim = Claim(incarnation=self._node.incarnation, rank=self._node.rank)
        return self._folder.create_exclusive(f"{self._claims}/{chunk}", claim.to_record())

    def _look_who_claimed(self) -> None:
        """One listing spares the tries that would fail; what it does not show yet fails, and that is all."""
        now = self._node.clock()
        if now >= self._next_listing:
            self._next_listing = now + _LISTING_S
            self._taken = {int(name) for name in self._folder.names(self._claims) if name.isdigit()}
