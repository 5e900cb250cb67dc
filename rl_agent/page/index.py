"""An index of a run's trajectories, in DuckDB, beside the store that stays the truth.

    trajectory files ─ as they grow, newest iteration first ─► rows ─► index.duckdb ─► search, groups
                                                     file and bytes of a line ─► the store ◄─┘

DuckDB: a search of a million episodes takes a fraction of a second without a server, in a bounded memory, and
its file is transactional, so that rows and the place up to which a file was read are one commit. Its own
format and not Parquet files: rows come every few seconds, and go when an iteration is collected anew. What
is lost, damaged or of another version is made anew. One process writes an index; another over the same log
path, or over a folder that cannot be written, makes its own in a temporary folder.
"""

import contextlib
import hashlib
import logging
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Literal

from rl_agent.errors import StoreError
from rl_agent.page.indexed import ADAPTER, COLUMNS, TABLE, EpisodeRow, row_of
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.manifest import Part, parts_of
from rl_agent.rollout.trajectories.shard import read_from, read_header
from rl_agent.types import Split

log = logging.getLogger(__name__)
SCHEMA = 1
"""Changes with the columns and with what is in them."""
BATCH = 5000
MEMORY_MB = 512
THREADS = 2
LOOK_EVERY_S = 2.0
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
        self._connection: Any = None
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
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._own_folder is not None:
                self._own_folder.cleanup()

    def ask(self, sql: str, parameters: list[Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none while there is no index yet. It may wait for `FIRST_LOOK_S`."""
        self._has_looked.wait(max(0.0, self._began_at + FIRST_LOOK_S - monotonic()))
        with self._lock:
            cursor = None if self._connection is None else self._connection.cursor()
        if cursor is None:
            return []
        try:
            rows: list[tuple[Any, ...]] = cursor.execute(sql, parameters).fetchall()
            return rows
        finally:
            cursor.close()

    # --- the thread that writes ---
    def _follow(self) -> None:
        while not self._leaving.is_set() and monotonic() - self._asked_at < IDLE_AFTER_S:
            try:
                if self._connection is None:
                    self._open()
                self._update()
                self.progress = IndexProgress(self._done_bytes, self._total_bytes, is_up_to_date=True)
            except Exception as error:  # a damaged index, a full disk: the page shows it and tries again
                log.warning("the index of %s: %s", self._paths.log_path, error)
                self.progress = IndexProgress(problem=f"the index could not be brought up to date: {error}")
                self._discard()
            self._has_looked.set()
            self._leaving.wait(LOOK_EVERY_S)

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
                self._connection = _opened(folder)
                return
            except duckdb.IOException as error:  # another process has it, or the folder cannot be written
                log.info("%s: %s; the index is made in a temporary folder", folder, error)
            except OSError as error:
                log.info("%s: %s; the index is made in a temporary folder", folder, error.strerror)
        raise StoreError(f"{self._paths.page_index}: no index can be made, here or in a temporary folder")

    def _discard(self) -> None:
        """Forget an index that failed; the next look makes it anew."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()
            if self._own_folder is None:
                shutil.rmtree(self._paths.page_index, ignore_errors=True)

    def _update(self) -> None:
        places = [
            (split, iteration, is_over)
            for split in _SPLITS
            for is_over in (False, True)
            for iteration in self._paths.iterations(split, unfinished=not is_over)
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
        if is_over:
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
        end = start
        lines = read_from(
            path, ADAPTER, start=start, end=part.size_bytes, is_checked=is_checked, on_damage=lambda *_: None
        )
        for span, episode in lines:
            if self._leaving.is_set():
                break
            end = span.end
            key = (episode.key.task_id, episode.key.group, episode.key.attempt)
            if is_shared and key in seen:
                continue
            seen.add(key) if is_shared else None
            rows.append(row_of(episode, split, iteration, name, span.begin, span.end - span.begin))
            if len(rows) >= BATCH:
                self._commit(rows, (name, split, iteration), path, start, end)
                rows, start = [], end
        self._commit(rows, (name, split, iteration), path, start, end)

    def _commit(
        self, rows: list[EpisodeRow], place: tuple[str, str, int], path: Path, start: int, end: int
    ) -> None:
        """Write rows and the place up to which their file was read, both or none."""
        if end == start:
            return
        import pyarrow as pa

        columns = list(zip(*map(_VALUES, rows), strict=True)) or [()] * len(COLUMNS)
        self._connection.execute("BEGIN")
        try:
            if rows:
                batch = pa.table({name: list(values) for name, values in zip(COLUMNS, columns, strict=True)})
                self._connection.register("batch", batch)
                self._connection.execute(f"INSERT INTO episode SELECT {', '.join(COLUMNS)} FROM batch")  # noqa: S608
                self._connection.unregister("batch")
            self._connection.execute(
                "INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?)",
                [*place, end, _end_stamp(path, end)],
            )
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
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
        rows: list[tuple[Any, ...]] = self._connection.execute(sql, parameters or []).fetchall()
        return rows

    def _write(self, sql: str, parameters: list[Any]) -> None:
        self._connection.execute(sql, parameters)


_VALUES = attrgetter(*COLUMNS)
_SPLITS: tuple[Literal["train", "test"], ...] = ("train", "test")


def _opened(folder: Path) -> Any:
    """Open the database of a folder; one that is damaged or of another version is made anew."""
    import duckdb

    file = folder / "index.duckdb"
    for is_last in (False, True):
        connection = None
        try:
            connection = duckdb.connect(str(file), config=_settings(folder))
            connection.execute("SET enable_external_access = false")
            connection.execute("CREATE TABLE IF NOT EXISTS about(schema INTEGER)")
            found = connection.execute("SELECT schema FROM about").fetchall()
            if found not in ([], [(SCHEMA,)]):
                raise duckdb.InvalidInputException(f"schema {found}")
            if not found:
                connection.execute(f"INSERT INTO about VALUES ({SCHEMA})")  # noqa: S608
            connection.execute(f"CREATE TABLE IF NOT EXISTS episode({TABLE})")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS file"
                "(name VARCHAR PRIMARY KEY, split VARCHAR, iteration BIGINT, size BIGINT, stamp VARCHAR)"
            )
            connection.execute(
                "CREATE TABLE IF NOT EXISTS finished"
                "(split VARCHAR, iteration BIGINT, stamp VARCHAR, PRIMARY KEY (split, iteration))"
            )
            return connection
        except duckdb.Error as error:
            if connection is not None:
                connection.close()
            if is_last or _is_taken(error):
                raise
            log.info("%s: %s; it is made anew", file, error)
            for one in _files_of(file):
                one.unlink(missing_ok=True)
    raise AssertionError("unreachable")


def _is_taken(error: Exception) -> bool:
    """Return whether another process has the file, or the folder may not be written."""
    return any(words in str(error) for words in ("lock", "Permission denied", "Read-only", "read-only"))


def _files_of(file: Path) -> Iterator[Path]:
    yield file
    yield file.with_name(f"{file.name}.wal")


def _settings(folder: Path) -> dict[str, Any]:
    return {
        "memory_limit": f"{MEMORY_MB}MB",
        "threads": THREADS,
        "temp_directory": str(folder / "spill"),
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }


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
