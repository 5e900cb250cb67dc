"""Which files are opened as an index, and how much of a disk it may take."""

import os

import duckdb
import pytest

from rl_agent.page import index_files
from rl_agent.page.index_files import NoRoom, check_own, check_room, open_files, remove_files


def test_an_index_is_opened_again_with_what_was_in_it(tmp_path):
    files = open_files(tmp_path)
    files.words.add([(1, "apple")])
    files.close()
    files = open_files(tmp_path)
    assert list(files.words.find('"apple"', 0, 9)) == [1]
    files.close()


def test_halves_of_different_indexes_are_both_made_anew(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        files = open_files(tmp_path / name)
        files.words.add([(1, "apple")])
        files.close()
    (tmp_path / "a" / "words.sqlite").rename(tmp_path / "b" / "words.sqlite")
    files = open_files(tmp_path / "b")
    assert list(files.words.find('"apple"', 0, 9)) == []
    files.close()


def test_what_another_process_holds_is_left_alone(tmp_path, monkeypatch):
    open_files(tmp_path).close()

    def connect(*_, **__):
        raise duckdb.IOException("Could not set lock on file: Conflicting lock is held")

    monkeypatch.setattr(duckdb, "connect", connect)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(duckdb.IOException):
        open_files(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_only_what_belongs_to_an_index_is_removed(tmp_path):
    open_files(tmp_path).close()
    (tmp_path / "mine.txt").write_text("x")
    remove_files(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_link_and_another_user_s_folder_are_no_place_for_an_index(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="link"):
        check_own(tmp_path / "link")
    (tmp_path / "link").unlink()
    check_own(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(OSError, match="another user"):
        check_own(tmp_path)


def test_a_disk_without_much_room_is_no_place_for_an_index(tmp_path, monkeypatch):
    monkeypatch.setattr(index_files, "RESERVE_BYTES", 0)
    check_room(tmp_path)
    monkeypatch.setattr(index_files, "RESERVE_BYTES", 2**60)
    with pytest.raises(NoRoom, match="are free"):
        check_room(tmp_path)
