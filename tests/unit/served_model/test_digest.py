"""Digests tell files apart, wherever they differ."""

import logging

import pytest
from blake3 import blake3

from rl_agent.served_model import digest
from rl_agent.served_model.digest import digest_files, first_difference


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Makes pieces so small that a file of a few bytes has several."""
    monkeypatch.setattr(digest, "PIECE_BYTES", 8)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 40])
def test_equal_files_have_equal_digests(tmp_path, size):
    content = bytes(range(size))
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(content)
    digests = digest_files([tmp_path / "a", tmp_path / "b"])
    assert digests["a"] == digests["b"]
    assert digests["a"] == digest.FileDigest(size, blake3(content).hexdigest())


@pytest.mark.parametrize("position", [0, 7, 8, 20, 39])
def test_one_changed_byte_changes_the_digest(tmp_path, position):
    path = tmp_path / "a"
    content = bytearray(40)
    path.write_bytes(content)
    before = digest_files([path])
    content[position] = 1
    path.write_bytes(content)
    assert digest_files([path]) != before
    assert first_difference(tmp_path, before) == f"{path}: differs from what was written"


def test_pieces_in_another_order_are_another_file(tmp_path):
    (tmp_path / "a").write_bytes(b"a" * 8 + b"b" * 8)
    (tmp_path / "b").write_bytes(b"b" * 8 + b"a" * 8)
    digests = digest_files([tmp_path / "a", tmp_path / "b"])
    assert digests["a"].blake3 != digests["b"].blake3


def test_a_file_that_is_short_or_gone_is_named(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"0123456789")
    wanted = digest_files([tmp_path / "a", tmp_path / "b"])
    assert first_difference(tmp_path, wanted) == ""
    (tmp_path / "b").write_bytes(b"012")
    assert first_difference(tmp_path, wanted) == f"{tmp_path / 'b'}: has 3 of the 10 bytes that were written"
    (tmp_path / "a").unlink()
    assert first_difference(tmp_path, wanted).startswith(f"{tmp_path / 'a'}: cannot be read (No such file")


def test_a_long_reading_says_how_far_it_is(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    (tmp_path / "a").write_bytes(bytes(40))
    digest_files([tmp_path / "a"])
    assert caplog.text == ""
    monkeypatch.setattr(digest, "_LOG_AFTER_S", -1.0)
    digest_files([tmp_path / "a"])
    assert caplog.text.count(f"computing digests of the files in {tmp_path}: 0.0 of 0.0 GiB read") == 1
