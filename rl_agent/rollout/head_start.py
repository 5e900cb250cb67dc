"""The chunks of a rollout that may begin before its phase is ordered.

    begin ─────────► groups of the sample, given out in this process alone ─┐
    order ─► open ─► the phase's chunks, of which every node claims ────────┴─► the collector

The master does not publish the groups that were given out before the order: they are finished here.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from rl_agent.cluster.member.chunk_queue import ChunkQueue, ClaimedChunk


class HeadStartQueue:
    """A source of a collector; it belongs to one event loop. Without `begin` it is the phase's queue."""

    def __init__(self) -> None:
        self.work: ChunkQueue | None = None
        """The phase's chunks; None before the order."""
        self.begun: set[int] = set()
        """Indices of the episodes that were given out before the order."""
        self.all_given = asyncio.Event()
        """Is set once nothing more waits to be started here."""
        self._shard: str | None = None
        self._groups: deque[list[int]] = deque()
        self._unfinished: set[int] = set()
        """Ids of chunks that were given out before the order; negative, unlike those of a phase."""
        self._is_ordered = asyncio.Event()
        self._is_open = asyncio.Event()
        self._is_finished = asyncio.Event()
        self._is_finished.set()

    def begin(self, groups: Sequence[list[int]]) -> None:
        """Let these groups, indices of episodes, be started before the order."""
        self._groups.extend(groups)

    def order(self, work: ChunkQueue) -> None:
        """Give out nothing more alone: the phase is ordered now."""
        self.work = work
        self._groups.clear()
        if self._shard is not None:
            work.set_shard(self._shard)
        self._is_ordered.set()

    async def ordered(self) -> ChunkQueue:
        """Wait for the order; returns the phase's chunks."""
        await self._is_ordered.wait()
        assert self.work is not None
        return self.work

    def open(self) -> None:
        """Go on with the chunks of the phase, once they are published."""
        self._is_open.set()

    async def finished(self) -> None:
        """Wait until all that was given out before the order is recorded."""
        await self._is_finished.wait()

    # --- what a collector and its file ask for ---
    async def next_chunk(self) -> ClaimedChunk | None:
        """Claim a chunk; None if none is left to claim now. Raises RetryLater like `ChunkQueue`."""
        if self.work is not None:
            await self._is_open.wait()
            return await self.work.next_chunk()
        if not self._groups:
            return None
        group = tuple(self._groups.popleft())
        chunk = ClaimedChunk(-1 - len(self.begun), group)  # a group has an episode at least
        self.begun.update(group)
        self._unfinished.add(chunk.id)
        self._is_finished.clear()
        return chunk

    async def more_or_closed(self) -> bool:
        """Wait; True once there is more to claim, False once the phase is closed."""
        if self.work is None:
            self.all_given.set()
        work = await self.ordered()
        await self._is_open.wait()
        self.all_given.set()
        return await work.more_or_closed()

    def report(self, chunk_id: int) -> None:
        """Complete a chunk, all of whose episodes are recorded and durable."""
        if chunk_id not in self._unfinished:
            assert self.work is not None
            self.work.report(chunk_id)
            return
        self._unfinished.discard(chunk_id)
        if not self._unfinished:
            self._is_finished.set()

    @property
    def shard(self) -> str | None:
        """Return the name of the file in which this node records its episodes."""
        return self._shard if self.work is None else self.work.shard

    def set_shard(self, name: str) -> None:
        """Note the node's file; the other nodes hear of it with the order."""
        self._shard = name
        if self.work is not None:
            self.work.set_shard(name)
