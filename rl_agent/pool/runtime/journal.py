"""What a manager must remember over its own death: one file, one JSON record a line.

A record is on the disk before anything that depends on it is said: a submission before it is acknowledged, a
result before a consumer sees it. Many records share one fsync. A half-written last line (the manager died
while writing) is dropped on reading; anything else that cannot be read is set aside (`replay`).

So that it does not grow for ever it is rewritten, while it is in use:

    compact(records) ─► a thread writes them beside it ─► what was appended meanwhile follows ─► rename
                        appends go on, to the old file

At every moment the name means a whole journal, the old or the new one. So records must be such that what was
appended after `compact` was called may be applied on top of `records`, though these may know of it already.

One manager has it at a time (`sole_owner`), from before it is read until the last thread that writes it has
ended. Where the disk is full, an append is taken back and tried again: whoever waits for it waits, nothing
is lost, and after `FULL_LIMIT_S` the manager gives up.
"""

import asyncio
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic_core import to_json

from rl_agent.errors import RetryLater, StoreError
from rl_agent.files import sync

log = logging.getLogger(__name__)
FULL_LIMIT_S = 300.0
FULL_RETRY_S = 1.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
Record = dict[str, Any]


class Journal:
    """`commit` returns once its records are on the disk; `run` must be running for that."""

    def __init__(self, path: Path, compact_bytes: float) -> None:
        self._path = path
        self._compact_bytes = compact_bytes
        """A smaller one is left alone; a larger one is due when it has grown to twice what it must hold."""
        self._lines: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._wake = asyncio.Event()
        self._descriptor = -1
        self._size = self._compact_size = 0
        self._beside: asyncio.Future[None] | None = None
        """The thread that writes the new journal."""
        self._is_over = threading.Event()
        """It need not go on."""
        self._tail: list[bytes] | None = None
        """Appended since `compact` was called; None if no compaction is under way."""

    @property
    def is_due(self) -> bool:
        """Whether it should be compacted now."""
        return self._tail is None and self._size > max(self._compact_bytes, 2 * self._compact_size)

    def append(self, records: Iterable[Record]) -> None:
        """On the disk soon; what is appended later is there later."""
        self.append_lines(line_of(record) for record in records)

    def append_lines(self, lines: Iterable[bytes]) -> None:
        self._lines += lines
        self._wake.set()

    async def commit(self, records: Iterable[Record] = ()) -> None:
        """Returns once these, and all that was appended before, are on the disk."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self.append(records)
        await done

    def compact(self, records: Iterable[Record]) -> None:
        """Begin to replace what is there by `records`, which are read in another thread."""
        loop = asyncio.get_running_loop()
        self._tail = []
        records = takewhile(lambda _: not self._is_over.is_set(), records)
        self._beside = loop.run_in_executor(None, _write_new, _beside(self._path), records)
        self._beside.add_done_callback(lambda _: self._wake.set())

    async def run(self) -> None:
        """Write until cancelled. Raises StoreError if the disk takes no more."""
        try:
            self._open()
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._write_out()
                if self._beside is not None and self._beside.done():
                    await self._switch(self._beside)
        except OSError as error:
            raise StoreError(f"the journal {self._path} cannot be written: {error.strerror}") from error
        finally:
            if self._beside is not None:
                self._is_over.set()
                await _ended(self._beside)
                _beside(self._path).unlink(missing_ok=True)
            if self._descriptor >= 0:
                os.close(self._descriptor)

    def _open(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._size = self._compact_size = os.fstat(self._descriptor).st_size

    async def _write_out(self) -> None:
        lines, self._lines = self._lines, []
        waiting, self._waiting = self._waiting, []
        if lines:
            await self._append(b"".join(lines))
            if self._tail is not None:
                self._tail += lines
        for done in waiting:
            if not done.done():
                done.set_result(None)

    async def _append(self, content: bytes) -> None:
        """Raises OSError."""
        deadline = time.monotonic() + FULL_LIMIT_S
        while True:
            try:
                await _in_thread(_write, self._descriptor, content, self._size)
            except OSError as error:
                if error.errno not in _FULL or time.monotonic() > deadline:
                    raise
                log.warning("the journal %s waits for room: %s", self._path, error.strerror)
                await asyncio.sleep(FULL_RETRY_S)
            else:
                self._size += len(content)
                return

    async def _switch(self, beside: "asyncio.Future[None]") -> None:
        """The new file takes the journal's name; nothing is appended meanwhile."""
        before, tail, self._beside = self._size, b"".join(self._tail or []), None
        try:
            beside.result()
            await _in_thread(_take_over, self._path, tail)
        except OSError as error:
            self._give_up(error)
            return
        self._tail = None
        self._open()
        log.info("journal %s: compacted from %d to %d bytes", self._path, before, self._size)

    def _give_up(self, error: OSError) -> None:
        """The old journal goes on; the next attempt is made when it has grown as much again."""
        log.warning("journal %s: not compacted: %s", self._path, error)
        _beside(self._path).unlink(missing_ok=True)
        self._tail, self._compact_size = None, self._size


async def _in_thread(function: Callable[..., None], *arguments: Any) -> None:
    """A cancellation waits for the thread's end: it would write to what may be another's by then."""
    job = asyncio.get_running_loop().run_in_executor(None, partial(function, *arguments))
    try:
        await asyncio.shield(job)
    except asyncio.CancelledError:
        await _ended(job)
        raise


async def _ended(job: "asyncio.Future[None]") -> None:
    while not job.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([job])


def line_of(record: Record) -> bytes:
    return to_json(record) + b"\n"


def _beside(path: Path, ending: str = ".tmp") -> Path:
    return path.with_name(path.name + ending)


def private(path: str, flags: int) -> int:
    """It holds prompts, and the token of transfers."""
    return os.open(path, flags, 0o600)


def _write(descriptor: int, content: bytes, size: int) -> None:
    """Append to a file of `size`, all or, with an OSError, nothing."""
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def _write_new(path: Path, records: Iterable[Record]) -> None:
    with open(path, "wb", opener=private) as file:
        for record in records:
            file.write(line_of(record))
        file.flush()
        os.fsync(file.fileno())


def _take_over(path: Path, tail: bytes) -> None:
    new = _beside(path)
    with open(new, "ab", opener=private) as file:
        file.write(tail)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    sync(path.parent)


@contextmanager
def sole_owner(path: Path) -> Iterator[None]:
    """Hold the journal for one manager, by a lock on FILE.lock that the kernel frees when its holder ends.

    On NFS the lock holds between hosts where the mount has locks (not with `nolock`), and a host that is cut
    off keeps it until the server's own deadline. Raises RetryLater if another has it, StoreError if the file
    system has no locks.
    """
    real = path.resolve()
    lock_file = _beside(real, ".lock")
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(lock_file, timeout=0, thread_local=False, fallback_to_soft=False)
        lock.acquire()
    except Timeout:
        raise RetryLater(
            f"journal={path} is in use by {_read_owner(lock_file)}: end that manager first,"
            " or give this one a journal of its own"
        ) from None
    except OSError as error:
        raise StoreError(f"journal={path} cannot be locked ({lock_file}): {error.strerror}") from error
    try:
        lock_file.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        yield
    finally:
        lock.release()


def _read_owner(lock_file: Path) -> str:
    with suppress(OSError, ValueError):
        if owner := lock_file.read_text(encoding="utf-8").strip():
            return owner
    return "another manager"


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines in order, numbered from 1; an unfinished last one is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield number, line


def rewrite_journal(path: Path, records: Iterable[Record]) -> None:
    """Replace it by `records`, whole: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_new(_beside(path), records)
    _take_over(path, b"")
