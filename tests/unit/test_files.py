"""Files that readers see whole, whoever writes them."""

import os
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent import files
from rl_agent.errors import ConfigError
from rl_agent.files import check_private, file_name, write_whole


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
    def refuse(one, other):
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


AWKWARD = [
    "a/b",
    "a_b",
    "a b",
    "a.b",
    "A_b",
    "..",
    ".",
    "~",
    "a~0",
    "ü",
    "u\u0308",
    "\ud800",
    "x" * 300,
    "x" * 301,
]


@given(
    one=st.text(max_size=80) | st.sampled_from(AWKWARD), other=st.text(max_size=80) | st.sampled_from(AWKWARD)
)
def test_two_texts_never_share_a_file_name_and_every_name_is_one(one, other):
    names = [file_name(text) for text in (one, other)]
    assert (names[0] == names[1]) == (one == other)
    for name in names:
        assert 0 < len(name.encode()) <= 120
        assert not set(name) & set("/\0\n ")
        assert name not in (".", "..")


def test_a_plain_name_stays_and_another_keeps_what_can_be_read_of_it():
    assert file_name("sum-17.2_b") == "sum-17.2_b"
    assert file_name("a/b").startswith("a_b~")
    assert file_name(file_name("a/b")) != file_name("a/b")


def test_texts_that_look_alike_have_names_of_their_own():
    texts = ["a/b", "a_b", "a b", "x" * 400, "x" * 401]
    assert len({file_name(text) for text in texts}) == len(texts)


@pytest.mark.parametrize(
    ("mode", "is_refused"), [(0o600, False), (0o400, False), (0o644, True), (0o640, True)]
)
def test_a_secret_that_others_can_read_is_refused_with_the_command_that_mends_it(tmp_path, mode, is_refused):
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
