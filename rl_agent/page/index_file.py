"""Opens the file of an index, in DuckDB."""

from pathlib import Path
from typing import Any

from rl_agent.page.indexed import TABLE

FILE = "index-7.duckdb"
"""Its number changes with the columns and with their content."""
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
CREATE TABLE IF NOT EXISTS episode({TABLE});
CREATE TABLE IF NOT EXISTS part
    (name VARCHAR, split VARCHAR, iteration BIGINT, size BIGINT, stamp VARCHAR, manifest VARCHAR);
"""


def open_index(folder: Path) -> Any:
    """Return a connection to the index of a folder.

    Raises OSError or duckdb.Error where another process has it, it is damaged, or nothing can be written.
    """
    import duckdb

    folder.mkdir(mode=0o700, exist_ok=True)
    connection = duckdb.connect(config=_SETTINGS | {"temp_directory": str(folder / "spill")})
    try:
        path = str(folder / FILE).replace("'", "''")
        options = f"ROW_GROUP_SIZE {ROW_GROUP_SIZE}, STORAGE_VERSION 'v1.5.0'"
        connection.execute(f"ATTACH '{path}' AS run ({options}); USE run; SET enable_external_access = false")
        connection.execute(_TABLES)
    except BaseException:
        connection.close()
        raise
    return connection


def empty_index() -> Any:
    """Return a connection to an index without episodes, in memory."""
    import duckdb

    connection = duckdb.connect(config=_SETTINGS)
    connection.execute(f"ATTACH ':memory:' AS run; USE run; {_TABLES}")
    return connection
