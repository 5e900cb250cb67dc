"""Opens the file of an index, in DuckDB; one that is damaged, foreign or of another release is made anew."""

import logging
import shutil
from pathlib import Path
from typing import Any

from rl_agent.page.indexed import TABLE

log = logging.getLogger(__name__)
FILE = "index.duckdb"
SCHEMA = 6
"""Changes with the columns and with their content."""
ROW_GROUP_SIZE = 2048
"""A row has all words of an episode, and a group of rows that is not full is written again and again."""
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "memory_limit": "512MB",
    "threads": 2,
    "preserve_insertion_order": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
_TABLES = f"""
CREATE TABLE episode({TABLE});
CREATE TABLE part
    (name VARCHAR, split VARCHAR, iteration BIGINT, size BIGINT, stamp VARCHAR, manifest VARCHAR);
"""


def open_index(folder: Path) -> Any:
    """Return a connection to the index of a folder.

    Raises OSError or duckdb.Error where another process has it, or nothing can be written.
    """
    import duckdb

    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        return _open(folder)
    except duckdb.Error as error:
        if any(
            words in str(error)
            for words in ("set lock", "already attached", "Permission denied", "Read-only")
        ):
            raise
        log.info("%s: %s; it is made anew", folder, error)
        shutil.rmtree(folder)
        folder.mkdir(mode=0o700)
        return _open(folder)


def empty_index() -> Any:
    """Return a connection to an index without episodes, in memory."""
    import duckdb

    connection = duckdb.connect(config=_SETTINGS)
    connection.execute(f"ATTACH ':memory:' AS run; USE run; {_TABLES}")
    return connection


def _open(folder: Path) -> Any:
    import duckdb

    connection = duckdb.connect(config=_SETTINGS | {"temp_directory": str(folder / "spill")})
    try:
        path = str(folder / FILE).replace("'", "''")
        options = f"ROW_GROUP_SIZE {ROW_GROUP_SIZE}, STORAGE_VERSION 'v1.5.0'"
        connection.execute(f"ATTACH '{path}' AS run ({options}); USE run; SET enable_external_access = false")
        connection.execute("CREATE TABLE IF NOT EXISTS about(schema INTEGER)")
        schemas = connection.execute("SELECT schema FROM about").fetchall()
        if schemas not in ([], [(SCHEMA,)]):
            raise duckdb.InvalidInputException(f"schema {schemas}")
        if not schemas:
            connection.execute(_TABLES).execute("INSERT INTO about VALUES (?)", [SCHEMA])
    except BaseException:
        connection.close()
        raise
    return connection
