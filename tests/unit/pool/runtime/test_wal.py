"""Damage in the middle of SQLite's write-ahead log is found; what a kill leaves is none."""

import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from rl_agent.pool.runtime.wal import WalDamage, find_damage

PROGRAM = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.executescript("PRAGMA page_size=4096; PRAGMA journal_mode=WAL; CREATE TABLE item(number)")
for number in range(10):
    with database:
        database.execute("INSERT INTO item VALUES (?)", (number,))
os.kill(os.getpid(), signal.SIGKILL)
"""
HEADER, FRAME = 32, 24 + 4096


@pytest.fixture
def log(tmp_path) -> Path:
    """Leave the log of a killed process: 2 frames for the table, and one for each of 10 items."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "store")], check=False)
    assert ended.returncode == -signal.SIGKILL
    log = tmp_path / "store-wal"
    assert log.stat().st_size == HEADER + 12 * FRAME
    return log


def flip(log: Path, at: int) -> None:
    content = bytearray(log.read_bytes())
    content[at] ^= 1
    log.write_bytes(content)


def num_items(log: Path) -> int:
    with closing(sqlite3.connect(log.with_name("store"))) as database:
        return database.execute("SELECT count(*) FROM item").fetchone()[0]


def test_a_log_that_a_kill_left_is_whole(log):
    assert find_damage(log) is None
    assert num_items(log) == 10


def test_no_log_has_no_damage(tmp_path):
    assert find_damage(tmp_path / "store-wal") is None


@pytest.mark.parametrize(
    "size", [0, 20, HEADER, HEADER + 7 * FRAME, HEADER + 7 * FRAME + 100, HEADER + 12 * FRAME - 1]
)
def test_a_log_torn_at_its_end_has_no_damage(log, size):
    log.write_bytes(log.read_bytes()[:size])
    assert find_damage(log) is None


def test_a_last_commit_that_is_half_written_is_no_damage(log):
    flip(log, HEADER + 11 * FRAME + 500)
    assert find_damage(log) is None
    assert num_items(log) == 9


@pytest.mark.parametrize("at", [4, 9, 18, 500], ids=["commit mark", "salts", "checksum", "page"])
def test_a_wrong_byte_in_the_middle_is_damage(log, at):
    flip(log, HEADER + 6 * FRAME + at)
    assert find_damage(log) == WalDamage(whole=6, lost=6)
    assert num_items(log) == 6 - 2


def test_a_damaged_header_loses_all_frames(log):
    for at in (0, 9, 20):
        damaged = log.with_name(f"damaged-{at}")
        shutil.copy(log, damaged)
        flip(damaged, at)
        assert find_damage(damaged) == WalDamage(whole=0, lost=12)


def test_older_frames_behind_the_newest_commit_are_no_damage(tmp_path):
    with closing(sqlite3.connect(tmp_path / "store")) as database:
        database.executescript("PRAGMA page_size=4096; PRAGMA journal_mode=WAL; CREATE TABLE item(number)")
        for number in range(10):
            with database:
                database.execute("INSERT INTO item VALUES (?)", (number,))
        database.execute("PRAGMA wal_checkpoint(RESTART)")
        with database:
            database.execute("INSERT INTO item VALUES (10)")
        log = tmp_path / "store-wal"
        assert log.stat().st_size == HEADER + 12 * FRAME
        assert find_damage(log) is None


def test_frames_that_a_rollback_left_are_no_damage(tmp_path):
    with closing(sqlite3.connect(tmp_path / "store")) as database:
        database.executescript("PRAGMA page_size=4096; PRAGMA cache_size=5; PRAGMA journal_mode=WAL;")
        database.execute("CREATE TABLE item(number)")
        database.execute("INSERT INTO item VALUES (randomblob(1000000))")
        database.rollback()
        with database:
            database.execute("INSERT INTO item VALUES (1)")
        log = tmp_path / "store-wal"
        assert log.stat().st_size > HEADER + 100 * FRAME
        assert find_damage(log) is None
