"""Files that readers see whole, whoever writes them."""

import os
import threading
from types import SimpleNamespace

import pytest

from rl_agent.errors import ConfigError
from rl_agent.system import files
from rl_agent.system.files import (
    check_private,
    load_object,
    read_object,
    write_whole,
)


def test_any_number_of_writers_leave_one_whole_file_and_nothing_else(tmp_path):
    path, contents = tmp_path / "record.json", [str(number) * 5000 for number in range(8)]
    errors = []

    def write(content):
        try:
            for _ in range(20):
                write_whole(path, content, is_durable=False)
                assert path.read_text() in contents
        except Exception as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert errors == []
    assert path.read_text() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    write_whole(path, "old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("can_swap", [True, False])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_folder_takes_the_place_of_another_and_leaves_nothing_beside(
    tmp_path, monkeypatch, can_swap, is_there
):
    def refuse(source, other):
        raise OSError(22, "Invalid argument")

    if not can_swap:
        monkeypatch.setattr(files, "swap", refuse)
    new, place = tmp_path / "step-1.tmp", tmp_path / "step-1"
    new.mkdir()
    (new / "state").write_text("new")
    if is_there:
        place.mkdir()
        (place / "state").write_text("old")
    files.put_in_place(new, place)
    assert (place / "state").read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-1"]


@pytest.mark.parametrize(
    ("mode", "is_refused"), [(0o600, False), (0o400, False), (0o644, True), (0o640, True)]
)
def test_a_secret_readable_by_others_is_refused_with_the_mending_command(tmp_path, mode, is_refused):
    secret = tmp_path / "pool token"
    secret.write_text("x")
    secret.chmod(mode)
    if not is_refused:
        check_private(secret, "token_file")
        return
    with pytest.raises(ConfigError, match=rf"mode {mode:04o}\); run: chmod 600 '{secret}'$"):
        check_private(secret, "token_file")


def test_a_secret_of_somebody_else_or_on_a_read_only_mount_is_taken(tmp_path, monkeypatch):
    secret = tmp_path / "token"
    secret.write_text("x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        check_private(secret, "token_file")
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY))
        check_private(secret, "token_file")


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b'{"a": 1', b"\xff", b"[" * 10**6, b'"text"'], ids=lambda _: ""
)
def test_a_damaged_json_file_is_refused_or_read_as_empty(tmp_path, content):
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^{path}: .*; restore the file$"):
        load_object(path)
    assert read_object(path) == {}


def test_a_json_file_that_may_not_be_read_says_so_once(tmp_path):
    with pytest.raises(OSError, match=rf"^[^/]*'{tmp_path}'$"):
        load_object(tmp_path)
    assert read_object(tmp_path) == {}


@pytest.mark.parametrize("read", [load_object, read_object])
def test_a_missing_json_file_is_read_as_empty(tmp_path, read):
    path = tmp_path / "settings.json"
    assert read(path) == read(path / "below") == {}
    path.write_text('{"a": {"b": 1}}')
    assert read(path) == {"a": {"b": 1}}


def test_whole_lines_are_read_without_the_one_that_is_begun(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"first\nlast\nbegun")
    assert list(files.whole_lines(path)) == [b"first\n", b"last\n"]
    assert list(files.whole_lines(tmp_path / "missing")) == []
