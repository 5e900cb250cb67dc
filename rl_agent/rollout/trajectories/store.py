"""One node's trajectory file on disk: append-only, and it survives any crash.

A line is written once and never rewritten, so an episode costs the same whether it is the first or the
hundred-thousandth. While a file grows its name ends in `.checkpoint`. `rollout.shard` has the format and the
readers, `rollout.manifest` what makes several files one iteration.

What holds:
- `append` returns once the line is on the disk (fsync). Lines that wait together share one fsync.
- A write that fails (full disk, file too large) fails every append that waits for it, and the file is cut
  back to its last acknowledged line. The writer then takes nothing more: after a failed fsync the kernel
  may have dropped what it held, so a second try could not be trusted.
- An append that is cancelled while it waits is written all the same: the episode is finished.
- One writer a file: its name is taken by whoever creates it, and only that one opens it again.

    create/resume ──► open ── append* ──► close
                        └── failed: every append raises StoreError; the acknowledged lines are kept
"""

import asyncio
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rl_agent.errors import StoreError
from rl_agent.rollout.trajectories.line import recorded
from rl_agent.rollout.trajectories.shard import ShardHeader, cut_torn_line, start_shard
from rl_agent.types import Trajectory

CLOSE_TIMEOUT_S = 30.0
"""Longest wait for the writer thread's last fsync."""


class ShardWriter:
    """The one writer of a growing file; made by `create` or `resume`, used as a context manager."""

    def __init__(self, growing: Path, *, fsync: bool) -> None:
        self._growing = growing
        self._refusal: str | None = None
        """The reason why no more episodes are taken; None while they are."""
        self._disk = _WriterThread(growing, self._settle, fsync=fsync)

    @classmethod
    @asynccontextmanager
    async def create(
        cls, growing: Path, header: ShardHeader, *, fsync: bool = True
    ) -> AsyncIterator["ShardWriter"]:
        """Begin a file. Raises FileExistsError if there is one, StoreError if it cannot be written."""
        await asyncio.to_thread(start_shard, growing, header)
        async with cls(growing, fsync=fsync)._running() as writer:
            yield writer

    @classmethod
    @asynccontextmanager
    async def resume(cls, growing: Path, *, fsync: bool = True) -> AsyncIterator["ShardWriter"]:
        """Go on with a file that this node began; a torn last line is cut off first."""
        await asyncio.to_thread(cut_torn_line, growing)
        async with cls(growing, fsync=fsync)._running() as writer:
            yield writer

    async def append(self, trajectory: Trajectory) -> Trajectory:
        """Record an episode; returns it as recorded, once it is durable.

        One that cannot be written and read again is recorded as failed. Raises StoreError if it could not be
        written at all.
        """
        if self._refusal is not None:
            raise StoreError(self._refusal)
        entry = _Entry(trajectory, asyncio.get_running_loop().create_future())
        self._disk.put(entry)
        return await entry.durable

    async def close(self) -> None:
        """Wait for what is in flight. Raises StoreError if an append had failed."""
        await self._stop()
        if self._refusal is not None:
            raise StoreError(self._refusal)
        self._refusal = f"{self._growing}: is closed"

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
            if entry.durable.done():  # its append was cancelled
                continue
            if entry.error is not None:
                entry.durable.set_exception(entry.error)
            elif failure is None:
                entry.durable.set_result(entry.trajectory)
            else:
                entry.durable.set_exception(StoreError(failure))


@dataclass(slots=True)
class _Entry:
    """An episode on its way to the disk. At most one a caller, so the callers bound the queue."""

    trajectory: Trajectory
    durable: "asyncio.Future[Trajectory]"
    error: Exception | None = None
    """The error that left it without a line, so that its append does not wait for ever."""

    def line(self) -> bytes:
        try:
            self.trajectory, line = recorded(self.trajectory)
        except Exception as error:
            self.error = error
            return b""
        return line


class _WriterThread:
    """Encodes and writes what waits in one go, syncs once, reports to the loop; repeats.

    Owned by a `ShardWriter`. The encoding is here because it grows with the responses.
    """

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
            failure = failure or self._write(b"".join([entry.line() for entry in batch]))
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
