"""Trajectories on disk: append-only shards that survive any crash.

A line is written once and never rewritten, so an episode costs the same whether it is the first or the
hundred-thousandth. While a shard grows its name ends in `.checkpoint`; `ShardWriter.complete` drops the
suffix by a rename. `rollout.shard` has the format and the readers.

What holds:
- `append` returns once the line is on the disk (fsync). Lines that wait together share one fsync.
- A write that fails (full disk, file too large) fails every append that waits for it, and the file is cut
  back to its last acknowledged line. The writer then takes nothing more: after a failed fsync the kernel
  may have dropped what it held, so a second try could not be trusted.
- An append that is cancelled while it waits is written all the same: the episode is finished.
- One writer a shard, by a lock file that the kernel frees when its holder dies, however it dies. On a shared
  file system this holds as far as its locks reach; it does not fence a holder that is merely asleep.

    create/resume ──► open ── append* ──► complete (renamed)
                        └── failed: every append raises StoreError; the acknowledged lines are kept
"""

import asyncio
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from rl_agent.errors import ConfigError, StoreError
from rl_agent.paths import RunPaths
from rl_agent.rollout.shard import (
    Recorded,
    ShardHeader,
    read_header,
    read_shard,
    recover,
    start_shard,
    sync_folder,
    to_line,
)
from rl_agent.types import EpisodeKey, Split, Trajectory

__all__ = ["Recorded", "ShardHeader", "ShardWriter", "read_header", "read_shard"]

CLOSE_TIMEOUT_S = 30.0
"""Longest wait for the writer thread's last fsync."""


class ShardWriter:
    """The one writer of a growing shard; made by `create` or `resume`, used as a context manager."""

    def __init__(self, growing: Path, finished: Path, header: ShardHeader, *, fsync: bool) -> None:
        self.header = header
        self.completed: dict[EpisodeKey, Recorded] = {}
        """Episodes that are on the disk."""
        self._growing = growing
        self._finished = finished
        self._pending: set[EpisodeKey] = set()
        self._refusal: str | None = None
        """Why no more episodes are taken; None while they are."""
        self._disk = _WriterThread(growing, self._settle, fsync=fsync)

    @classmethod
    @asynccontextmanager
    async def create(
        cls, paths: RunPaths, header: ShardHeader, *, fsync: bool = True
    ) -> AsyncIterator["ShardWriter"]:
        """Start the shard of `header`; one that was left unfinished is set aside, never overwritten.

        Raises StoreError if the iteration is finished already or another process writes it.
        """
        growing = paths.checkpoint_shard(header.split, header.iteration)
        finished = paths.shard(header.split, header.iteration)
        growing.parent.mkdir(parents=True, exist_ok=True)
        with _sole_writer(growing):
            if finished.exists():
                raise StoreError(f"{finished}: is complete already and is not collected again")
            _set_aside(growing, header.created_at)
            start_shard(growing, header)
            async with cls(growing, finished, header, fsync=fsync)._running() as writer:
                yield writer

    @classmethod
    @asynccontextmanager
    async def resume(
        cls, paths: RunPaths, split: Split, iteration: int, *, fsync: bool = True
    ) -> AsyncIterator["ShardWriter"]:
        """Go on with an unfinished shard; `completed` holds what it has.

        Raises ConfigError if there is none, StoreError if a line is broken or another process writes it.
        """
        growing = paths.checkpoint_shard(split, iteration)
        if not growing.exists():
            raise ConfigError(f"--resume: there is no unfinished rollout to go on with ({growing})")
        with _sole_writer(growing):
            header, completed = await asyncio.to_thread(recover, growing)
            writer = cls(growing, paths.shard(split, iteration), header, fsync=fsync)
            writer.completed = completed
            async with writer._running():
                yield writer

    async def append(self, trajectory: Trajectory) -> None:
        """Record an episode; returns once it is durable.

        Raises StoreError if its key was recorded before, or if it could not be written.
        """
        key = trajectory.key
        if self._refusal is not None:
            raise StoreError(self._refusal)
        if key in self.completed or key in self._pending:
            raise StoreError(f"{self._growing}: episode {key} was recorded before")
        recorded = Recorded(key, trajectory.status, trajectory.reward, trajectory.truncated)
        entry = _Entry(to_line(trajectory), recorded, asyncio.get_running_loop().create_future())
        self._pending.add(key)
        self._disk.put(entry)
        await entry.durable

    async def complete(self) -> Path:
        """Wait for what is in flight and drop the `.checkpoint` suffix. Returns the new name.

        Raises StoreError if an append had failed; the shard then keeps its suffix.
        """
        await self._stop()
        if self._refusal is not None:
            raise StoreError(self._refusal)
        if self._finished.exists():
            raise StoreError(f"{self._finished}: appeared while {self._growing} was being written")
        self._refusal = f"{self._finished}: is complete and takes no more episodes"
        self._growing.rename(self._finished)
        sync_folder(self._finished.parent)
        return self._finished

    @asynccontextmanager
    async def _running(self) -> AsyncIterator["ShardWriter"]:
        self._disk.start(asyncio.get_running_loop())
        try:
            yield self
        finally:
            await self._stop()
            self._refusal = self._refusal or f"{self._growing}: is closed"

    async def _stop(self) -> None:
        self._disk.stop()
        await asyncio.sleep(0)  # the loop now runs what the thread handed it last

    def _settle(self, batch: "list[_Entry]", failure: str | None) -> None:
        """Wake the appends of a batch; runs on the event loop."""
        self._refusal = self._refusal or failure
        for entry in batch:
            self._pending.discard(entry.recorded.key)
            if failure is None:
                self.completed[entry.recorded.key] = entry.recorded
            if entry.durable.done():  # its append was cancelled
                continue
            if failure is None:
                entry.durable.set_result(None)
            else:
                entry.durable.set_exception(StoreError(failure))


class _Entry(NamedTuple):
    """A line on its way to the disk. At most one a caller, so the callers bound the queue."""

    line: bytes
    recorded: Recorded
    durable: "asyncio.Future[None]"


class _WriterThread:
    """Writes what waits in one go, syncs once, reports to the loop; repeats. Owned by a `ShardWriter`."""

    def __init__(
        self, path: Path, settle: Callable[[list[_Entry], str | None], None], *, fsync: bool
    ) -> None:
        self._path = path
        self._settle = settle
        self._fsync = fsync
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"write {path.name}", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Open the file for appending. Raises StoreError where that fails."""
        self._loop = loop
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be opened for writing: {error.strerror}") from error
        self._acknowledged_bytes = os.fstat(self._file).st_size
        self._thread.start()

    def put(self, entry: _Entry) -> None:
        self._queue.put(entry)

    def stop(self) -> None:
        """Write what waits, end the thread, close the file; a second call does nothing.

        Blocks the loop for the last fsync on purpose: nothing else is left to do, and no cancellation may
        come between. Raises StoreError if the disk does not answer within `CLOSE_TIMEOUT_S`.
        """
        if not self._thread.is_alive():
            return
        self._queue.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            raise StoreError(f"{self._path}: the disk did not finish a write in {CLOSE_TIMEOUT_S:.0f} s")
        os.close(self._file)

    def _run(self) -> None:
        failure: str | None = None
        is_open = True
        while is_open:
            waiting = [self._queue.get()]
            with suppress(queue.Empty):
                while True:
                    waiting.append(self._queue.get_nowait())
            is_open = waiting[-1] is not None  # `stop` puts None, and nothing is put after it
            batch = [entry for entry in waiting if entry is not None]
            failure = failure or self._write(b"".join(entry.line for entry in batch))
            self._loop.call_soon_threadsafe(self._settle, batch, failure)

    def _write(self, lines: bytes) -> str | None:
        """Append and sync; on failure, cut the file back to what was acknowledged and say why."""
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            if self._fsync and lines:
                os.fdatasync(self._file)
        except OSError as error:
            return f"{self._path}: cannot be written: {error.strerror}; {self._cut_back()}"
        self._acknowledged_bytes += len(lines)
        return None

    def _cut_back(self) -> str:
        try:
            os.ftruncate(self._file, self._acknowledged_bytes)
            os.fsync(self._file)
        except OSError as error:
            return f"nor could it be cut back to byte {self._acknowledged_bytes}: {error.strerror}"
        return "the episodes recorded before are intact"


@contextmanager
def _sole_writer(growing: Path) -> Iterator[None]:
    """Hold the shard's lock. Raises StoreError if another process has it."""
    lock_file = growing.with_name(growing.name + ".lock")
    lock = FileLock(lock_file, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise StoreError(f"{growing}: another process is writing it") from error
    try:
        yield
    finally:
        if not growing.exists():  # complete: nobody needs the lock again
            lock_file.unlink(missing_ok=True)
        lock.release()


def _set_aside(growing: Path, now: float) -> None:
    if growing.exists():
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        aside = growing.with_name(f"{growing.name}.aside-{stamp}")
        if aside.exists():
            raise StoreError(f"{aside}: exists; {growing.name} was not overwritten")
        growing.rename(aside)
