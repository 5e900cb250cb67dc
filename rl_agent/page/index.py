"""An index of a run's trajectories, in DuckDB and SQLite, beside the store that stays the truth.

    trajectory files ─ as they grow, newest iteration first ─► rows ─► index.duckdb ─► search, groups
                                                     │   all that was said ─► words.sqlite ─┘
                                    file and bytes of a line ─► the store

DuckDB: a search of a million episodes takes a fraction of a second without a server, in a bounded memory, and
its file is transactional, so that rows and the place up to which a file was read are one commit. Its own
format and not Parquet files: rows come every few seconds, and go when an iteration is collected anew. Words
are committed before the rows they belong to: those without a row are never found. What
is lost, damaged or of another version is made anew. One process writes an index; another over the same log
path, or over a folder that cannot be written, makes its own in a temporary folder. What fails is left alone
for a while: a full disk shall not be filled again and again.
"""

import contextlib
import hashlib
import logging
import sqlite3
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Literal

from rl_agent.errors import StoreError
from rl_agent.page.index_files import (
    IndexFiles,
    NoRoom,
    check_own,
    check_room,
    inode_of,
    open_files,
    remove_files,
)
from rl_agent.page.indexed import ADAPTER, COLUMNS, EpisodeRow, row_of, said_in
from rl_agent.page.words import MAX_ITERATION
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.manifest import Part, parts_of
from rl_agent.rollout.trajectories.shard import read_from, read_header
from rl_agent.types import Split

log = logging.getLogger(__name__)
BATCH = 2000
MAX_BATCH_CHARACTERS = 16 * 2**20
LOOK_EVERY_S = 2.0
AGAIN_AFTER_S = 60.0
"""An index that failed rests for so long."""
IDLE_AFTER_S = 60.0
"""Nobody has asked for so long: the index rests, and costs a run nothing."""
FIRST_LOOK_S = 1.5
"""A first question waits so long for what is new in the store: seldom more than a look is needed."""
STAMP_BYTES = 64


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """The progress of an index."""

    done_bytes: int = 0
    total_bytes: int = 0
    is_up_to_date: bool = False
    problem: str = ""

    @property
    def share(self) -> float:
        return min(1.0, self.done_bytes / self.total_bytes) if self.total_bytes else 1.0


class EpisodeIndex:
    """The index of one log path. `ask` may be called from any thread; one thread of its own writes."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._files: IndexFiles | None = None
        self._folder = paths.page_index
        self._inode: int | None = None
        self._damage = ""
        self._own_folder: tempfile.TemporaryDirectory[str] | None = None
        self._lock = Lock()
        self._thread: Thread | None = None
        self._leaving = Event()
        self._asked_at = self._began_at = float("-inf")
        self._has_looked = Event()
        self._done_bytes = self._total_bytes = 0
        self.progress = IndexProgress()

    def wake(self) -> None:
        """Bring the index up to date, and keep it so while somebody looks."""
        self._asked_at = monotonic()
        with self._lock:
            if not (self._thread and self._thread.is_alive()) and not self._leaving.is_set():
                name = f"index {self._paths.log_path.name}"
                self._thread = Thread(target=self._follow, name=name, daemon=True)
                self._began_at = self._asked_at
                self._thread.start()

    def close(self) -> None:
        """End the thread, and give the file back."""
        self._leaving.set()
        if self._thread:
            self._thread.join(10)
        with self._lock:
            if self._files is not None:
                self._files.close()
                self._files = None
            if self._own_folder is not None:
                self._own_folder.cleanup()

    def ask(
        self, sql: str, parameters: list[Any], *, ids: "array[int] | None" = None
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none while there is no index yet. It may wait for `FIRST_LOOK_S`.

        `ids` are the rows of a table `found` that the query may name. Raises StoreError for a damaged index.
        """
        if (files := self._looked_at()) is None:
            return []
        with self._noticing(), contextlib.closing(files.numbers.cursor()) as cursor:
            if ids is not None:
                import pyarrow as pa

                cursor.register("found", pa.table({"id": pa.array(ids, pa.int64())}))
            rows: list[tuple[Any, ...]] = cursor.execute(sql, parameters).fetchall()
            return rows

    def find(self, expression: str, first: int, last: int) -> "array[int]":
        """Return the ids of episodes of these iterations whose words fit. Raises StoreError like `ask`."""
        if (files := self._looked_at()) is None:
            return array("q")
        with self._noticing():
            return files.words.find(expression, first, last)

    def _looked_at(self) -> IndexFiles | None:
        self._has_looked.wait(max(0.0, self._began_at + FIRST_LOOK_S - monotonic()))
        with self._lock:
            return self._files

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        """Note an index that turns out to be damaged when it is read; the next look makes it anew."""
        import duckdb

        try:
            yield
        except (duckdb.Error, sqlite3.Error) as error:
            self._damage = f"{self._paths.page_index}: cannot be read and is made anew: {error}"
            raise StoreError(self._damage) from error

    # --- the thread that writes ---
    def _follow(self) -> None:
        pause_s = LOOK_EVERY_S
        while not self._leaving.is_set() and monotonic() - self._asked_at < IDLE_AFTER_S:
            try:
                if self._damage or self._is_gone():
                    self._discard()
                if self._files is None:
                    self._open()
                self._update()
                self.progress = IndexProgress(self._done_bytes, self._total_bytes, is_up_to_date=True)
                pause_s = LOOK_EVERY_S
            except NoRoom as error:  # what is indexed stays
                self.progress = IndexProgress(problem=str(error))
                pause_s = AGAIN_AFTER_S
            except Exception as error:  # a damaged index, a full disk: the page shows it and tries again
                log.warning("the index of %s: %s", self._paths.log_path, error)
                self.progress = IndexProgress(problem=f"the index could not be brought up to date: {error}")
                self._discard()
                pause_s = min(2 * pause_s, AGAIN_AFTER_S)
            self._has_looked.set()
            self._leaving.wait(pause_s)

    def _open(self) -> None:
        """Open the index beside the store, else one in a temporary folder."""
        import duckdb

        for folder in (self._paths.page_index, None):
            if folder is None:
                own = tempfile.TemporaryDirectory(prefix="rl-agent-page-", ignore_cleanup_errors=True)
                self._own_folder = own
                folder = Path(self._own_folder.name)
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
                check_own(folder)
                self._files, self._folder = open_files(folder), folder
                self._inode = inode_of(folder)
                return
            # Another process has it, or the folder cannot be written.
            except (OSError, duckdb.Error, sqlite3.Error) as error:
                log.info("%s: %s; the index is made in a temporary folder", folder, error)
        raise StoreError(f"{self._paths.page_index}: no index can be made, here or in a temporary folder")

    def _is_gone(self) -> bool:
        """Return whether the files of the open index were deleted: what is written to them is lost."""
        return self._files is not None and inode_of(self._folder) != self._inode

    def _discard(self) -> None:
        """Forget an index that failed; the next look makes it anew."""
        self._damage = ""
        with self._lock:
            files, self._files = self._files, None
        if files is not None:
            with contextlib.suppress(Exception):
                files.close()
            with contextlib.suppress(OSError):
                remove_files(self._folder)
        if self._own_folder is not None:
            self._own_folder.cleanup()
            self._own_folder = None

    def _update(self) -> None:
        places = [
            (split, iteration, is_over)
            for split in _SPLITS
            for is_over in (False, True)
            for iteration in self._paths.iterations(split, unfinished=not is_over)
            if iteration <= MAX_ITERATION
        ]
        known = dict(self._rows("SELECT (split, iteration), stamp FROM finished"))
        indexed = set(self._rows("SELECT DISTINCT split, iteration FROM file"))
        for split, iteration in indexed - {place[:2] for place in places}:
            self._forget(split, iteration)
        open_places = []
        for split, iteration, is_over in sorted(places, key=lambda place: -place[1]):
            stamp = _stamp_of(self._paths.manifest(split, iteration)) if is_over else ""
            if not is_over or known.get((split, iteration)) != stamp:
                open_places.append((split, iteration, is_over, stamp))
        shards = {place: self._parts(*place[:3]) for place in open_places}
        covered = dict(self._rows("SELECT name, size FROM file"))
        sizes = {part.shard.name: _size_of(part) for parts in shards.values() for part in parts}
        self._done_bytes = sum(size for name, size in covered.items())
        self._total_bytes = self._done_bytes + sum(
            max(0, size - covered.get(name, 0)) for name, size in sizes.items()
        )
        for place in open_places:
            if self._leaving.is_set():
                return
            self._update_iteration(*place, parts=shards[place])

    def _parts(self, split: Split, iteration: int, is_over: bool) -> list[Part]:
        """Return the files of an iteration; of one that is damaged as a whole, those that are there."""
        try:
            return parts_of(self._paths, split, iteration)
        except StoreError as error:
            log.info("%s", error)
            return [Part(shard) for shard in self._paths.shards(split, iteration)]

    def _update_iteration(
        self, split: Split, iteration: int, is_over: bool, stamp: str, parts: list[Part]
    ) -> None:
        covered = self._rows("SELECT size FROM file WHERE split = ? AND iteration = ?", [split, iteration])
        longest = min((part.size_bytes for part in parts if part.size_bytes is not None), default=None)
        if is_over and covered and (len(parts) > 1 or (longest is not None and covered[0][0] > longest)):
            self._forget(split, iteration)  # which episodes count, and from which file, is known only now
        for part in parts:
            with contextlib.suppress(StoreError, FileNotFoundError):  # renamed or set aside meanwhile
                self._read(split, iteration, part, is_shared=len(parts) > 1)
        if is_over and not self._leaving.is_set():  # else it may have been left in the middle
            self._write("INSERT OR REPLACE INTO finished VALUES (?, ?, ?)", [split, iteration, stamp])

    def _read(self, split: Split, iteration: int, part: Part, *, is_shared: bool) -> None:
        """Take in what follows the last line that was read of a file."""
        path, name = part.path, part.shard.name
        found = self._rows("SELECT size, stamp FROM file WHERE name = ?", [name])
        start = 0
        if found:
            start, before = found[0]
            if before != _end_stamp(path, start):  # it was replaced, or cut off
                self._forget_file(name)
                start = 0
        if path.stat().st_size <= start:
            return
        is_checked = read_header(path).has_checksums
        seen = self._keys(split, iteration) if is_shared else set()
        rows: list[EpisodeRow] = []
        said: list[tuple[int, str]] = []
        waiting, end, place = 0, start, (name, split, iteration)
        next_id = self._open_files.words.next_id(iteration)
        damaged: list[int] = []
        lines = read_from(
            path,
            ADAPTER,
            start=start,
            end=part.size_bytes,
            is_checked=is_checked,
            on_damage=lambda span, _: damaged.append(span.end),
        )
        for span, episode in lines:
            if self._leaving.is_set():
                break
            end = span.end
            key = (episode.key.task_id, episode.key.group, episode.key.attempt)
            if is_shared and key in seen:
                continue
            seen.add(key) if is_shared else None
            rows.append(row_of(episode, next_id, split, iteration, name, span.begin, span.end - span.begin))
            said.append((next_id, said_in(episode)))
            next_id += 1
            waiting += len(said[-1][1])
            if len(rows) >= BATCH or waiting > MAX_BATCH_CHARACTERS:
                self._commit(rows, said, place, path, start, end)
                rows, said, waiting, start = [], [], 0, end
        if damaged and not self._leaving.is_set():  # what is damaged is read once
            end = max(end, damaged[-1])
        self._commit(rows, said, place, path, start, end)

    def _commit(
        self,
        rows: list[EpisodeRow],
        said: list[tuple[int, str]],
        place: tuple[str, str, int],
        path: Path,
        start: int,
        end: int,
    ) -> None:
        """Write rows and the place up to which their file was read, both or none; their words before."""
        if end == start:
            return
        import pyarrow as pa

        check_room(self._folder)
        self._open_files.words.add(said)
        columns = list(zip(*map(_VALUES, rows), strict=True)) or [()] * len(COLUMNS)
        numbers = self._open_files.numbers
        numbers.execute("BEGIN")
        try:
            if rows:
                batch = pa.table({name: list(values) for name, values in zip(COLUMNS, columns, strict=True)})
                numbers.register("batch", batch)
                numbers.execute(f"INSERT INTO episode SELECT {', '.join(COLUMNS)} FROM batch")  # noqa: S608
                numbers.unregister("batch")
            numbers.execute(
                "INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?)",
                [*place, end, _end_stamp(path, end)],
            )
            numbers.execute("COMMIT")
        except BaseException:
            numbers.execute("ROLLBACK")
            raise
        self._done_bytes += end - start
        self.progress = IndexProgress(self._done_bytes, self._total_bytes)

    def _keys(self, split: Split, iteration: int) -> set[tuple[str, int, int]]:
        sql = "SELECT task_id, group_index, attempt FROM episode WHERE split = ? AND iteration = ?"
        return {(task, group, attempt) for task, group, attempt in self._rows(sql, [split, iteration])}

    def _forget(self, split: str, iteration: int) -> None:
        for table in ("episode", "file", "finished"):
            self._write(f"DELETE FROM {table} WHERE split = ? AND iteration = ?", [split, iteration])  # noqa: S608

    def _forget_file(self, name: str) -> None:
        self._write("DELETE FROM episode WHERE file = ?", [name])
        self._write("DELETE FROM file WHERE name = ?", [name])

    def _rows(self, sql: str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._open_files.numbers.execute(sql, parameters or []).fetchall()
        return rows

    def _write(self, sql: str, parameters: list[Any]) -> None:
        self._open_files.numbers.execute(sql, parameters)

    @property
    def _open_files(self) -> IndexFiles:
        assert self._files is not None, "the thread that writes opens it first"
        return self._files


_VALUES = attrgetter(*COLUMNS)
_SPLITS: tuple[Literal["train", "test"], ...] = ("train", "test")


def _stamp_of(path: Path) -> str:
    """Return what changes when a file is written anew."""
    try:
        found = path.stat()
    except OSError:
        return "none"
    return f"{found.st_mtime_ns} {found.st_size}"


def _end_stamp(path: Path, end: int) -> str:
    """Return a digest of the last bytes before `end`: of the checksum of the last line that was read."""
    with path.open("rb") as file:
        file.seek(max(0, end - STAMP_BYTES))
        return hashlib.sha256(file.read(min(STAMP_BYTES, end))).hexdigest()


def _size_of(part: Part) -> int:
    try:
        return part.path.stat().st_size
    except (StoreError, OSError):
        return 0
