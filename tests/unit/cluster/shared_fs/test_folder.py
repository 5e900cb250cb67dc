"""The shared folder: whole records, and names that one gets."""

import errno
import os
import shutil
import threading

import pytest

from rl_agent.cluster.shared_fs import folder as folder_module
from rl_agent.cluster.shared_fs.folder import MemoryFolder, SharedFolder
from rl_agent.errors import StoreError
from tests.support.cluster.lagging_folder import LaggingFolder


@pytest.fixture(params=["shared", "memory", "lagging"])
def folder(request, tmp_path):
    if request.param == "shared":
        return SharedFolder(tmp_path)
    if request.param == "memory":
        return MemoryFolder()
    return LaggingFolder(SharedFolder(tmp_path), lag_s=0.0, seed=1, clock=lambda: 0.0)


def test_a_record_is_read_as_it_was_written_and_absence_is_none(folder):
    assert folder.read("a/b.json") is None
    folder.write_whole("a/b.json", {"x": [1, "ü"]})
    folder.write_whole("a/b.json", {"x": 2}, is_durable=False)
    assert folder.read("a/b.json") == {"x": 2}
    assert folder.names("a") == ["b.json"] and folder.names("nowhere") == []


def test_only_a_new_version_is_told(folder):
    folder.write_whole("a", {"x": 1})
    stamp, record = folder.read_if_changed("a", None)
    assert record == {"x": 1} and folder.read_if_changed("a", stamp) == (stamp, None)
    folder.write_whole("a", {"x": 1})
    assert folder.read_if_changed("a", stamp)[1] == {"x": 1}


def test_a_name_is_given_once(folder):
    assert folder.create_exclusive("claims/7", {"by": 1}) is True
    assert folder.create_exclusive("claims/7", {"by": 2}) is False
    assert folder.read("claims/7") == {"by": 1} and folder.names("claims") == ["7"]


def test_of_many_threads_that_try_one_gets_the_name(tmp_path):
    winners, start = [], threading.Barrier(8)

    def claim(me):
        mine = SharedFolder(tmp_path)
        start.wait()
        winners.extend((chunk, me) for chunk in range(25) if mine.create_exclusive(f"c/{chunk}", {"by": me}))

    threads = [threading.Thread(target=claim, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(chunk for chunk, _ in winners) == list(range(25))
    assert all(SharedFolder(tmp_path).read(f"c/{chunk}") == {"by": me} for chunk, me in winners)
    assert SharedFolder(tmp_path).names("c") == sorted(map(str, range(25)))


def test_a_link_whose_answer_was_lost_is_known_as_our_own(tmp_path, monkeypatch):
    real_link = os.link

    def link_and_lose_the_answer(source, target):
        real_link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", link_and_lose_the_answer)
    assert SharedFolder(tmp_path).create_exclusive("c", {"by": 1}) is True


def test_without_hard_links_a_name_is_still_given_once(tmp_path, monkeypatch):
    def no_links(source, target):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    folder = SharedFolder(tmp_path)
    assert [folder.create_exclusive("c/1", {"by": me}) for me in (1, 2)] == [True, False]
    assert folder.read("c/1") == {"by": 1} and folder.names("c") == ["1"]


def test_a_torn_record_counts_as_absent(tmp_path):
    (tmp_path / "a").write_text('{"x": ')
    (tmp_path / "b").write_text("[1]")
    assert SharedFolder(tmp_path).read("a") is None and SharedFolder(tmp_path).read("b") is None


def test_a_full_disk_is_one_line_that_names_the_file_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder_module.os, "fsync", full)
    with pytest.raises(StoreError, match=r"/a\.json: cannot be written: No space left on device"):
        SharedFolder(tmp_path).write_whole("a.json", {})
    assert list(tmp_path.iterdir()) == []


def test_a_log_path_that_was_removed_is_not_made_again(tmp_path):
    folder = SharedFolder(tmp_path / "log")
    (tmp_path / "log").mkdir()
    folder.write_whole("cluster/a", {})
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(StoreError, match="is gone"):
        folder.write_whole("cluster/a", {})
    with pytest.raises(StoreError, match="is gone"):
        folder.create_exclusive("cluster/b", {})
    assert not (tmp_path / "log").exists()
