"""The journal: all that a restarted manager needs, in one SQLite database.

A write is on the disk before anything that depends on it is said: a submission before it is acknowledged, a
sample before a consumer sees it. All that waits shares one commit (group commit), which one thread makes.
A file that is only appended to acknowledges as many requests of 16 clients (520 to 630 a second, here 520 to
850; of 256 clients 620 to 1,050, here 440 to 580). SQLite needs no code of ours for torn writes, for room
that is used again, or to replay a log, and a pool samples no more responses than that.

Whole at every instant: write-ahead log with `synchronous=FULL`, so that a kill or a power cut leaves all
that was committed. The lock is exclusive, which works on network file systems too, where a shared one does
not. Where the disk is full, a commit is rolled back and tried again: whoever waits for it waits, nothing is
lost, and after `FULL_LIMIT_S` the manager gives up. One manager has the journal at a time.

    run(name, acknowledged)                        the last cursor whose samples its consumer has
    request(run, id, submission, sample, cursor)   open: submission · ended: sample, with its cursor once its
                                                   group has ended too · acknowledged: neither
    progress(kind, run, id, start, record)         tokens from `start` on of an open `request` or of a `call`
    wanted(kind, record)                           the `model` and the `weights` that engines must serve; of
                                                   `scaling`, how many engines are wanted
"""

import asyncio
import logging
import sqlite3
import stat
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rl_agent.errors import ConfigError, StoreError

log = logging.getLogger(__name__)
FULL_LIMIT_S = 300.0
FULL_RETRY_S = 1.0
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)
"""No room on the disk, or in the user's quota."""
SCHEMA = """
PRAGMA page_size=4096;
PRAGMA locking_mode=EXCLUSIVE;
PRAGMA journal_mode=WAL;
PRAGMA synchronous=FULL;
PRAGMA wal_autocheckpoint=16384;
CREATE TABLE IF NOT EXISTS run(name TEXT PRIMARY KEY, acknowledged INTEGER);
CREATE TABLE IF NOT EXISTS request(
    run TEXT, id TEXT, submission BLOB, sample BLOB, cursor INTEGER, PRIMARY KEY (run, id));
CREATE INDEX IF NOT EXISTS collectable ON request(run, cursor) WHERE cursor IS NOT NULL;
CREATE TABLE IF NOT EXISTS progress(
    kind TEXT, run TEXT, id TEXT, start INTEGER, record BLOB, PRIMARY KEY (kind, run, id, start));
CREATE TABLE IF NOT EXISTS wanted(kind TEXT PRIMARY KEY, record BLOB);
"""
_TABLES = {"run", "request", "progress", "wanted"}
_TABLE_NAMES = "SELECT name FROM sqlite_master WHERE type = 'table'"
Write = tuple[str, tuple[Any, ...]]
"""A statement and its parameters."""


def check_journal(path: Path) -> None:
    """Raises ConfigError if what is there is no journal; reads only, and leaves nothing beside it."""
    try:
        status = path.stat()
    except OSError:  # it is new, or the opening tells why it cannot be used
        return
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"journal={path}: is not a file but a folder, a device or a pipe; name a file")
    if not status.st_size:
        return
    address = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"  # without its log, and without a lock
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            names = {name for (name,) in database.execute(_TABLE_NAMES)}
    except sqlite3.Error as error:  # it cannot be opened now, or another manager is writing it
        if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
            return
        names = {"none"}
    if not names <= _TABLES:
        raise ConfigError(f"journal={path}: is not a journal of a manager; name another file")


class Journal:
    """An open journal with group commit. `commit` waits for the disk; `run` must be running for that.

    Raises ConfigError if the path is not a file of a manager, StoreError if the file cannot be opened now.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        check_journal(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)  # it holds prompts, and the token of transfers
            self._connection = sqlite3.connect(path, check_same_thread=False)
            self._connection.executescript(SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise self.unusable(error) from error
        self._writes: list[Write] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    def unusable(self, error: Exception) -> StoreError:
        """Return the error to raise if the journal cannot be read."""
        return StoreError(
            f"the journal {self.path} cannot be used: {getattr(error, 'strerror', None) or error}"
        )

    def rows(self, select: str) -> Iterable[tuple[Any, ...]]:
        """Return the rows of a query. Raises sqlite3.Error."""
        return self._connection.execute(select)

    def write(self, writes: Iterable[Write]) -> None:
        """Commit all of these writes, or none with an sqlite3.Error."""
        with self._connection:
            for statement, parameters in writes:
                self._connection.execute(statement, parameters)

    def append(self, writes: Iterable[Write]) -> None:
        """Write soon, after everything that was appended before."""
        self._writes += writes
        self._wake.set()

    async def commit(self, writes: Iterable[Write] = ()) -> None:
        """Return once these writes, and all that was appended before, are on the disk."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self.append(writes)
        await done

    async def run(self) -> None:
        """Write until cancelled, then close. Raises StoreError if the disk takes no more."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                writes, self._writes = self._writes, []
                waiting, self._waiting = self._waiting, []
                await self._write_when_there_is_room(writes)
                for done in waiting:
                    if not done.done():
                        done.set_result(None)
        except sqlite3.Error as error:
            raise StoreError(f"the journal {self.path} cannot be written: {error}") from error
        finally:
            self._thread.shutdown()  # a commit that is under way ends before another manager may begin
            self._connection.close()

    async def _write_when_there_is_room(self, writes: list[Write]) -> None:
        """Commit in the journal's thread, again and again while the disk is full. Raises sqlite3.Error."""
        deadline, loop = time.monotonic() + FULL_LIMIT_S, asyncio.get_running_loop()
        while True:
            try:
                await loop.run_in_executor(self._thread, self.write, writes)
            except sqlite3.Error as error:
                if error.sqlite_errorcode not in _FULL or time.monotonic() > deadline:
                    raise
                log.warning("the journal %s waits for room on the disk: %s", self.path, error)
                await asyncio.sleep(FULL_RETRY_S)
            else:
                return
