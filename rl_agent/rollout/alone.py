"""A run of one node that shares its work with nobody: its chunks, in memory."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rl_agent.config import Plan
from rl_agent.types import Phase


@dataclass(frozen=True, slots=True)
class AloneChunk:
    id: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AlonePart:
    name: str
    rank: int = 0
    cut_bytes: int | None = None


class AloneWork:
    """`rollout.lead.Work` for the only rank; for one event loop."""

    def __init__(self, chunk_tasks: int) -> None:
        self.shard: str | None = None
        self.is_published = False
        self.sample_digest: str | None = None
        self.weight_version: int | None = None
        self.on_lost: Callable[[str], tuple[int, set[int]]] = lambda name: (0, set())
        self._chunk_tasks = chunk_tasks
        self._free: deque[AloneChunk] = deque()
        self._held: dict[int, AloneChunk] = {}
        self._changed = asyncio.Event()
        self._is_closed = False

    async def publish(self, groups: list[list[int]], *, digest: str, weight_version: int) -> None:
        for first in range(0, len(groups), self._chunk_tasks):
            together = groups[first : first + self._chunk_tasks]
            self._free.append(AloneChunk(first, tuple(index for group in together for index in group)))
        self.is_published = True
        self._wake()

    async def next_chunk(self) -> AloneChunk | None:
        if not self._free:
            return None
        chunk = self._free.popleft()
        self._held[chunk.id] = chunk
        return chunk

    async def more_or_closed(self) -> bool:
        while not self._free and not self._is_closed:
            await self._changed.wait()
        return bool(self._free)

    async def all_complete(self) -> list[AlonePart]:
        while self._free or self._held:
            await self._changed.wait()
        return [AlonePart(self.shard)] if self.shard is not None else []

    def report(self, chunk_id: int) -> None:
        del self._held[chunk_id]
        self._wake()

    def set_shard(self, name: str) -> None:
        self.shard = name

    def close(self) -> None:
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class AloneMember:
    """`rollout.run.Member` for the only rank."""

    rank = 0
    is_master = True
    is_alone = True

    def __init__(self, plan: Plan) -> None:
        self._chunk_tasks = plan.config.cluster.chunk_tasks

    def work(self, iteration: int, phase: Phase) -> AloneWork:
        return AloneWork(self._chunk_tasks)

    def set_doing(self, text: str) -> None:
        """Nobody asks."""

    def check(self) -> None:
        """Nothing can happen to it."""
