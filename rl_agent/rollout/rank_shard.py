"""One rank's file of an iteration: begun with its first episode, and each episode recorded once.

nothing yet ──► begun (a name that no other node has) ──► closed
     └ resume: goes on with the file that this node began before
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from rl_agent.errors import StoreError
from rl_agent.paths import RunPaths, growing_name
from rl_agent.rollout.sample import Ledger
from rl_agent.rollout.trajectories.shard import ShardHeader
from rl_agent.rollout.trajectories.store import ShardWriter
from rl_agent.types import EpisodeKey, Trajectory


class RankShard:
    """Records this rank's episodes; a context manager. `on_begun` is called with the file's name."""

    def __init__(
        self,
        paths: RunPaths,
        header: ShardHeader,
        ledger: Ledger,
        *,
        rank: int,
        is_sole: bool,
        fsync: bool,
        on_begun: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.shard: Path | None = None
        """Its name without `.checkpoint`; None before the first episode."""
        self.episodes = 0
        self.is_sole = is_sole
        """The run has one node: its file has no rank in its name."""
        self._paths = paths
        self._header = header
        self._ledger = ledger
        self._rank = rank
        self._fsync = fsync
        self._on_begun = on_begun
        self.on_recorded: Callable[[Trajectory], None] = lambda trajectory: None
        """Called with each episode once it is durable."""
        self._pending: set[EpisodeKey] = set()
        self._writer: ShardWriter | None = None
        self._beginning: asyncio.Event | None = None
        """Is set once an attempt to begin the file is over; None while nobody tries."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def folder(self) -> Path:
        return self._paths.trajectory_dir(self._header.split)

    async def resume(self, shard: Path, *, episodes: int) -> None:
        """Go on with a file that this node began and that holds so many episodes, all in the ledger."""
        resumed = ShardWriter.resume(growing_name(shard), fsync=self._fsync)
        self._writer = await self._stack.enter_async_context(resumed)
        self.shard, self.episodes = shard, episodes
        self._on_begun(shard.name)

    async def append(self, trajectory: Trajectory) -> Trajectory:
        """Record an episode; returns it as recorded, once it is durable.

        Raises StoreError if it was recorded before, is of another sample, or could not be written.
        """
        key = trajectory.key
        if self._ledger.contains(key) or key in self._pending:
            raise StoreError(f"episode {key} of iteration {self._header.iteration} was recorded before")
        self._pending.add(key)
        try:
            writer = self._writer or await self._begin()
            recorded = await writer.append(trajectory)
        except Exception:
            self._pending.discard(key)
            raise
        self._pending.discard(key)
        self._ledger.record(key)
        self.episodes += 1
        self.on_recorded(recorded)
        return recorded

    async def close(self) -> None:
        """Wait for what is in flight. Raises StoreError if an append had failed."""
        if self._writer is not None:
            await self._writer.close()

    async def _begin(self) -> ShardWriter:
        """Return the file once it is begun, to all who wait at once: by a lock they would come one by one."""
        while self._writer is None:
            if self._beginning is not None:
                await self._beginning.wait()
                continue
            self._beginning = attempt = asyncio.Event()
            try:
                await self._create()
            finally:
                self._beginning = None
                attempt.set()
        return self._writer

    async def _create(self) -> None:
        for shard in self._names():
            if shard.exists():
                continue
            created = ShardWriter.create(growing_name(shard), self._header, fsync=self._fsync)
            try:
                self._writer = await self._stack.enter_async_context(created)
            except FileExistsError:
                continue
            self.shard = shard
            self._on_begun(shard.name)
            break

    def _names(self) -> Iterator[Path]:
        """Yield the names that this rank may take, the preferred first."""
        split, iteration = self._header.split, self._header.iteration
        if self.is_sole:
            yield self._paths.shard(split, iteration)
        for part in itertools.count(1):
            yield self._paths.shard(split, iteration, rank=self._rank, part=part)
