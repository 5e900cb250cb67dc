"""The journal: whole at every instant, patient with a full disk, one manager's at a time."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

from rl_agent.errors import ConfigError, StoreError
from rl_agent.pool.runtime import journal as journal_module
from rl_agent.pool.runtime.journal import Journal
from tests.support.pool_setup import read_journal, until


def named(*names: str, record: bytes | None = None) -> list:
    return [("INSERT INTO wanted(kind, record) VALUES (?, ?)", (name, record)) for name in names]


def names_in(path) -> list[str]:
    return [row["kind"] for row in read_journal(path, "wanted")]


async def write(journal: Journal, play) -> None:
    """Let `play` use a journal that runs."""
    async with asyncio.TaskGroup() as jobs:
        writer = jobs.create_task(journal.run())
        await play()
        writer.cancel()


@pytest.fixture
def full_disk(monkeypatch):
    """Lets a database grow to a few pages only, until `make_room`."""
    monkeypatch.setattr(journal_module, "FULL_RETRY_S", 0.01)

    class Full:
        def fill(self, journal: Journal) -> None:
            self.connection = journal._connection
            [pages] = self.connection.execute("PRAGMA page_count").fetchone()
            self.connection.execute(f"PRAGMA max_page_count = {pages}")

        def make_room(self) -> None:
            self.connection.execute("PRAGMA max_page_count = 1000000")

    return Full()


def large(name: str) -> list:
    return named(name, record=b'"%s"' % (b"7" * 100_000))


async def test_what_is_committed_together_is_there_and_in_order(tmp_path):
    journal = Journal(tmp_path / "journal")

    async def play() -> None:
        journal.append(named("a"))
        await asyncio.gather(*(journal.commit(named(f"b{n}")) for n in range(5)))

    await write(journal, play)
    assert names_in(tmp_path / "journal") == ["a", *(f"b{n}" for n in range(5))]


async def test_with_a_full_disk_a_commit_waits_and_is_written_once(tmp_path, full_disk, caplog):
    journal = Journal(tmp_path / "journal")
    full_disk.fill(journal)

    async def play() -> None:
        async with asyncio.TaskGroup() as jobs:
            waiting = jobs.create_task(journal.commit([*named("a"), *large("b")]))
            await until(lambda: caplog.text.count("waits for room") >= 3, 30)
            assert not waiting.done()
            full_disk.make_room()
        await journal.commit(named("c"))

    await write(journal, play)
    assert names_in(tmp_path / "journal") == ["a", "b", "c"]


async def test_persistently_full_disk_ends_the_manager_with_whole_commits(tmp_path, full_disk, monkeypatch):
    monkeypatch.setattr(journal_module, "FULL_LIMIT_S", 0.05)
    journal = Journal(tmp_path / "journal")
    full_disk.fill(journal)
    journal.append([*named("a"), *large("b")])
    with pytest.raises(StoreError, match="cannot be written: database or disk is full"):
        await journal.run()
    assert names_in(tmp_path / "journal") == []


@pytest.mark.parametrize("kind", ["lines", "database"])
def test_a_file_of_another_program_is_named_and_left_as_it_is(tmp_path, kind):
    if kind == "lines":
        (tmp_path / "journal").write_text('{"kind": "a line of an older manager"}\n')
    else:
        with closing(sqlite3.connect(tmp_path / "journal")) as database:
            database.executescript("CREATE TABLE bookmarks(url TEXT); CREATE TABLE run(name TEXT);")
    before = (tmp_path / "journal").read_bytes()
    with pytest.raises(ConfigError, match=r"/journal: is not a journal of a manager; name another"):
        Journal(tmp_path / "journal")
    assert (tmp_path / "journal").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]


def test_a_folder_is_refused_as_a_journal_and_gets_nothing_new(tmp_path):
    with pytest.raises(ConfigError, match=r"journal=.*: is not a file but a folder, a device or a pipe"):
        Journal(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_database_that_another_process_has_open_is_not_written(tmp_path):
    """Should the file system's locks not hold, SQLite's own stop the second manager."""
    first = Journal(tmp_path / "journal")
    first.write(named("a"))
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite3.connect(tmp_path / "journal", timeout=0).execute("SELECT * FROM wanted")
    first._connection.close()
