"""Keeps an index of a run's trajectories in one file of DuckDB, beside the store that stays the truth.

    trajectory files ─ as they grow, newest iteration first ─► rows ─► index.duckdb ─► search, groups
                                    file and bytes of a line ─► the store

DuckDB filters a million episodes in a fraction of a second without a server, in bounded memory, and its file
is transactional: the rows of an iteration and how far its files were read are one commit. An index that is
lost or of another release is made anew. One process writes it; another one over the same log path, or over a
folder that cannot be written, makes its own in a temporary folder, as does one that finds it damaged. After a
failure the thread waits, so that a full disk is not filled again and again.
"""

import contextlib
import hashlib
import logging
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from time import monotonic
from typing import Any, Literal

from rl_agent.errors import StoreError
from rl_agent.page.background_lookup import BackgroundLookup
from rl_agent.page.index_file import FILE, empty_index, open_index
from rl_agent.page.indexed import ADAPTER, row_of
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.manifest import Part, parts_of
from rl_agent.rollout.trajectories.shard import read_from

log = logging.getLogger(__name__)
BATCH = 2048
MAX_BATCH_CHARACTERS = 16 * 2**20
LOOK_EVERY_S = 2.0
AGAIN_AFTER_S = 60.0
"""The pause after a failure."""
FIRST_LOOK_S = 1.5
"""A first question waits so long for the thread to see what is new in the store."""
STAMP_BYTES = 64
Place = tuple[Literal["train", "test"], int]
"""A split, and one of its iterations."""


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
    """The index of one log path. Any thread may read it; one at a time writes, while somebody looks."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._folder = paths.page_index
        self._connection: Any = None
        self._own_folder: tempfile.TemporaryDirectory[str] | None = None
        self._lock, self._writing = Lock(), Lock()
        self._leaving = Event()
        self._failed_at = float("-inf")
        self._done_bytes = self._total_bytes = 0
        self._looks = BackgroundLookup(f"index {paths.log_path.name}", self._look, None, LOOK_EVERY_S)
        self.progress = IndexProgress()

    def wake(self) -> None:
        """Bring the index up to date."""
        self._looks.newest()

    def close(self) -> None:
        """End what is being written, and give the file back."""
        self._leaving.set()
        if self._writing.acquire(timeout=10):
            self._writing.release()
        self._close_file()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Any]:
        """Give a cursor over one state of the index; there are no rows while there is no index.

        The start may wait for `FIRST_LOOK_S`. Raises StoreError if the index cannot be read.
        """
        import duckdb

        self._looks.newest(FIRST_LOOK_S)
        try:
            with self._lock:
                connection = self._connection
                cursor = connection.cursor() if connection else empty_index()
            with contextlib.closing(cursor):
                yield cursor.execute("USE run; BEGIN")
        except duckdb.Error as error:
            raise StoreError(f"{self._paths.page_index}: cannot be read ({error}); delete it") from error

    # --- the thread that writes ---
    def _look(self) -> None:
        with self._writing:
            if self._leaving.is_set() or monotonic() < self._failed_at + AGAIN_AFTER_S:
                return
            try:
                if not (self._folder / FILE).exists():
                    self._discard()
                if self._connection is None:
                    self._open()
                self._update()
                self.progress = IndexProgress(self._done_bytes, self._total_bytes, is_up_to_date=True)
            except InterruptedError:
                return
            except Exception as error:  # a damaged index, a full disk: the page shows it and tries again
                log.warning("the index of %s: %s", self._paths.log_path, error)
                self._discard()
                problem = f"the index could not be brought up to date: {error}"
                self.progress, self._failed_at = IndexProgress(problem=problem), monotonic()

    def _open(self) -> None:
        """Open the index beside the store, else one in a temporary folder."""
        import duckdb

        try:
            self._folder = self._paths.page_index
            connection = open_index(self._folder)
        except (OSError, duckdb.Error) as error:  # another process has it, it is damaged or cannot be written
            log.info("%s: %s; the index is made in a temporary folder", self._folder, error)
            own = tempfile.TemporaryDirectory(prefix="rl-agent-page-", ignore_cleanup_errors=True)
            self._own_folder, self._folder = own, Path(own.name)
            connection = open_index(self._folder)
        with self._lock:
            self._connection = connection

    def _close_file(self) -> bool:
        """Close the file, remove a temporary one, and return whether one was open."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # damage may show now
                connection.close()
        if self._own_folder is not None:
            self._own_folder.cleanup()
            self._own_folder = None
        return connection is not None

    def _discard(self) -> None:
        """Remove an index that failed or was deleted; the next look makes it anew."""
        if self._close_file():
            shutil.rmtree(self._folder, ignore_errors=True)

    def _update(self) -> None:
        """Read what is new in the store, newest iteration first."""
        manifests = self._manifests()
        indexed = dict(self._execute("SELECT (split, iteration), any_value(manifest) FROM part GROUP BY ALL"))
        for place in indexed.keys() - manifests.keys():
            with self._transaction():
                self._forget(place)
        places = [
            place for place, manifest in manifests.items() if not manifest or indexed.get(place) != manifest
        ]
        parts = {place: self._parts(place) for place in sorted(places, key=lambda place: -place[1])}
        self._done_bytes = 0
        self._total_bytes = sum(_size_of(part) for of_place in parts.values() for part in of_place)
        for place, of_place in parts.items():
            with self._transaction():
                if manifests[place] or indexed.get(place):  # which episodes count, and of which file, is new
                    self._forget(place)
                for part in of_place:
                    with contextlib.suppress(StoreError, FileNotFoundError):  # renamed or set aside meanwhile
                        self._read(place, part, manifests[place])

    def _manifests(self) -> dict[Place, str]:
        """Return what tells the manifest of each iteration from an earlier one; empty while it grows."""
        stamps: dict[Place, str] = {}
        splits: tuple[Literal["train", "test"], ...] = ("train", "test")
        for split in splits:
            for iteration in self._paths.iterations(split, unfinished=True):
                stamps[split, iteration] = ""
            for iteration in self._paths.iterations(split):
                stamps[split, iteration] = _stamp_of(self._paths.manifest(split, iteration))
        return stamps

    def _parts(self, place: Place) -> list[Part]:
        """Return the files of an iteration; of one that is damaged as a whole, those that are there."""
        try:
            return parts_of(self._paths, *place)
        except StoreError as error:
            log.info("%s", error)
            return [Part(shard) for shard in self._paths.shards(*place)]

    def _read(self, place: Place, part: Part, manifest: str) -> None:
        """Take in what follows the last line that was read of a file."""
        path, name = part.path, part.shard.name
        end = start = self._read_before(path, name)
        self._done_bytes += start
        if 0 < start == path.stat().st_size:
            return
        for rows, end in self._batches(place, part, start):  # noqa: B007 - the last one is kept
            self._add(rows)
        self._execute("DELETE FROM part WHERE name = ?", [name])
        values = [name, *place, end, _end_stamp(path, end), manifest]
        self._execute("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", values)

    def _read_before(self, path: Path, name: str) -> int:
        """Return up to which byte a file was read; the rows of one that was replaced or cut off go."""
        for size, stamp in self._execute("SELECT size, stamp FROM part WHERE name = ?", [name]):
            if stamp == _end_stamp(path, size):
                return int(size)
            self._execute("DELETE FROM episode WHERE file = ?", [name])
        return 0

    def _batches(self, place: Place, part: Part, start: int) -> Iterator[tuple[list[dict[str, Any]], int]]:
        """Yield rows of the episodes from byte `start` that no other file has, and where their lines end."""
        path, ends, characters = part.path, [start], 0
        rows: list[dict[str, Any]] = []
        keys = self._keys(place)
        for span, episode in read_from(
            path,
            ADAPTER,
            start=start,
            end=part.size_bytes,
            on_damage=lambda span, _: ends.append(span.end),  # it is read once
        ):
            if self._leaving.is_set():
                raise InterruptedError  # what is not committed is read the next time
            ends.append(span.end)
            self._done_bytes += span.end - span.begin
            row = row_of(episode, *place, part.shard.name, span)
            key = row["task_id"], row["group_index"], row["attempt"]
            if key not in keys:
                keys.add(key)
                rows.append(row)
                characters += len(row["words"])
            if len(rows) >= BATCH or characters > MAX_BATCH_CHARACTERS:
                yield rows, ends[-1]
                rows, characters = [], 0
        yield rows, ends[-1]

    def _add(self, rows: list[dict[str, Any]]) -> None:
        import pyarrow as pa

        if rows:
            self._connection.register("batch", pa.Table.from_pylist(rows))
            self._execute("INSERT INTO episode BY NAME SELECT * FROM batch")
            self._connection.unregister("batch")
        self.progress = IndexProgress(self._done_bytes, self._total_bytes)

    def _keys(self, place: Place) -> set[tuple[Any, ...]]:
        sql = "SELECT task_id, group_index, attempt FROM episode WHERE split = ? AND iteration = ?"
        return set(self._execute(sql, place))

    def _forget(self, place: Place) -> None:
        for table in ("episode", "part"):
            self._execute(f"DELETE FROM {table} WHERE split = ? AND iteration = ?", place)  # noqa: S608

    def _execute(self, sql: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._connection.execute(sql, list(parameters)).fetchall()
        return rows

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN")
        try:
            yield
        except BaseException:
            self._execute("ROLLBACK")
            raise
        self._execute("COMMIT")


def _stamp_of(path: Path) -> str:
    """Return what changes when a file is written anew."""
    try:
        status = path.stat()
    except OSError:
        return "none"
    return f"{status.st_mtime_ns} {status.st_size}"


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
