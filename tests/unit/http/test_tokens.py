"""Tokens of a service: read from private files, compared whole, and rotated while it runs."""

import os

import pytest

from rl_agent.errors import ConfigError
from rl_agent.http import tokens
from rl_agent.http.tokens import TokenCheck, is_loopback, is_same_secret, read_tokens


def write(path, text, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("header", "is_right"),
    [
        ("Bearer one", True),
        ("bearer  two ", True),
        ("Basic one", False),
        ("one", False),
        ("Bearer onetwo", False),
        ("Bearer \udcff", False),
        ("", False),
    ],
)
def test_any_of_the_tokens_is_right_and_only_as_a_bearer(header, is_right):
    assert TokenCheck(("one", "two"), None).is_among(header) is is_right


def test_without_tokens_none_is_needed_and_none_is_right():
    check = TokenCheck((), None)
    assert not check.is_needed and not check.is_among("Bearer ")


def test_a_rotated_file_counts_at_the_next_look_and_an_empty_one_never(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "TOKEN_RECHECK_S", 0.0)
    file = write(tmp_path / "token", "# comment\nold\n\n")
    check = TokenCheck(read_tokens(file), file)
    assert check.is_among("Bearer old")
    write(file, "new\nold\n")
    os.utime(file, ns=(1, 1))
    assert check.is_among("Bearer new") and check.is_among("Bearer old")
    write(file, "")
    os.utime(file, ns=(2, 2))
    assert check.is_among("Bearer new"), "half-way through a rotation"
    file.unlink()
    assert check.is_among("Bearer new")


def test_a_file_readable_by_others_or_without_text_is_refused_by_its_key(tmp_path):
    with pytest.raises(ConfigError, match=r"pool\.token_file"):
        read_tokens(write(tmp_path / "open", "one\n", 0o644), "pool.token_file")
    with pytest.raises(ConfigError, match=r"token_file=.* cannot be read: No such file"):
        read_tokens(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "bytes").chmod(0o600)
    with pytest.raises(ConfigError, match="it is not UTF-8"):
        read_tokens(tmp_path / "bytes")


def test_secrets_are_compared_whatever_bytes_were_given():
    assert is_same_secret("a", "a") and not is_same_secret("\udc80", "a")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)],
)
def test_only_loopback_is_loopback(host, expected):
    assert is_loopback(host) is expected
    assert not is_loopback("localhost.example")
