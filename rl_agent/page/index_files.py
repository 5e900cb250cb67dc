"""Opens an index: its numbers in DuckDB, its words in SQLite. What is damaged is made anew."""

import logging
import os
import secrets
import shutil
import sqlite3
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_agent.errors import MachineError
from rl_agent.page.indexed import TABLE
from rl_agent.page.words import Words

log = logging.getLogger(__name__)
SCHEMA = 2
"""Changes with the columns and with what is in them."""
NUMBERS, WORDS = "index.duckdb", "words.sqlite"
MEMORY_MB = 512
THREADS = 2
RESERVE_BYTES = 2**30
"""So much of a disk is left to the run."""
_TABLES = f"""
CREATE TABLE IF NOT EXISTS episode({TABLE});
CREATE TABLE IF NOT EXISTS file
    (name VARCHAR PRIMARY KEY, split VARCHAR, iteration BIGINT, size BIGINT, stamp VARCHAR);
CREATE TABLE IF NOT EXISTS finished
    (split VARCHAR, iteration BIGINT, stamp VARCHAR, PRIMARY KEY (split, iteration));
"""


class NoRoom(MachineError):
    """The disk has hardly room left."""


@dataclass(frozen=True, slots=True)
class IndexFiles:
    """An open index."""

    numbers: Any
    """A connection of DuckDB."""
    words: Words

    def close(self) -> None:
        self.numbers.close()
        self.words.close()


def open_files(folder: Path) -> IndexFiles:
    """Open the index of a folder; one that is damaged or of another version is made anew.

    Raises OSError, duckdb.Error or sqlite3.Error where another process has it, or nothing can be written.
    """
    import duckdb

    for is_last in (False, True):
        numbers = None
        try:
            numbers = duckdb.connect(str(folder / NUMBERS), config=_settings(folder))
            numbers.execute("SET enable_external_access = false")
            numbers.execute("CREATE TABLE IF NOT EXISTS about(schema INTEGER, words INTEGER)")
            found = numbers.execute("SELECT schema, words FROM about").fetchall()
            mark = found[0][1] if found else 1 + secrets.randbelow(2**31 - 2)
            if found not in ([], [(SCHEMA, mark)]):
                raise duckdb.InvalidInputException(f"schema {found}")
            words = Words(folder / WORDS, mark, is_new=not found)
            if not found:
                numbers.execute("INSERT INTO about VALUES (?, ?)", [SCHEMA, mark])
            numbers.execute(_TABLES)
            return IndexFiles(numbers, words)
        except (duckdb.Error, sqlite3.Error) as error:
            if numbers is not None:
                numbers.close()
            if is_last or _is_taken(error):
                raise
            log.info("%s: %s; it is made anew", folder, error)
            remove_files(folder)
    raise AssertionError("unreachable")


def check_own(folder: Path) -> None:
    """Raises OSError unless a folder and its files are this user's, and no links: a run may be anybody's."""
    for path in (folder, *folder.iterdir()):
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(f"{path}: is a link, or another user's")


def remove_files(folder: Path) -> None:
    """Remove an index; what is no file of one stays."""
    for name in (NUMBERS, f"{NUMBERS}.wal", WORDS, f"{WORDS}-wal", f"{WORDS}-shm"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "spill", ignore_errors=True)


def inode_of(folder: Path) -> int | None:
    """Return the number of the index file in a folder; None if there is none."""
    try:
        return (folder / NUMBERS).stat().st_ino
    except OSError:
        return None


def check_room(folder: Path) -> None:
    """Raises NoRoom if the disk has hardly room for the run itself."""
    if (free := shutil.disk_usage(folder).free) < RESERVE_BYTES:
        raise NoRoom(
            f"{folder}: {free / 1e6:,.0f} MB are free, and the page leaves the last "
            f"{RESERVE_BYTES / 1e6:,.0f} MB to the run; trajectories are found as far as they are indexed"
        )


def _is_taken(error: Exception) -> bool:
    """Return whether another process has the file, or the folder may not be written."""
    words = ("lock", "Permission denied", "Read-only", "read-only", "readonly", "unable to open")
    return any(word in str(error) for word in words)


def _settings(folder: Path) -> dict[str, Any]:
    return {
        "memory_limit": f"{MEMORY_MB}MB",
        "threads": THREADS,
        "temp_directory": str(folder / "spill"),
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
