"""An index is opened with its content; one that is not ours is made anew, one that is taken left alone."""

import subprocess
import sys

import duckdb
import pytest

from rl_agent.page.index_file import FILE, open_index

FOREIGN = {
    "of another release": "CREATE TABLE about(schema INTEGER); INSERT INTO about VALUES (1)",
    "without our tables": "CREATE TABLE other(x INTEGER)",
    "with another table about": "CREATE TABLE about(x VARCHAR)",
}


def parts_in(folder):
    connection = open_index(folder)
    rows = connection.execute("SELECT name FROM part").fetchall()
    connection.close()
    return rows


def test_an_index_is_opened_again_with_its_content(tmp_path):
    connection = open_index(tmp_path)
    connection.execute("INSERT INTO part(name) VALUES ('a')")
    connection.close()
    assert parts_in(tmp_path) == [("a",)]


@pytest.mark.parametrize("content", [b"", b"no database", b"no database" * 10_000, None])
def test_a_damaged_file_is_made_anew(tmp_path, content):
    file = tmp_path / FILE
    file.mkdir() if content is None else file.write_bytes(content)
    assert parts_in(tmp_path) == [] == parts_in(tmp_path)


@pytest.mark.parametrize("statements", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_file_is_made_anew(tmp_path, statements):
    with duckdb.connect(str(tmp_path / FILE)) as foreign:
        foreign.execute(statements)
    assert parts_in(tmp_path) == []


def test_a_file_that_is_open_here_or_elsewhere_is_left_alone(tmp_path):
    script = f"import duckdb; c = duckdb.connect({str(tmp_path / FILE)!r}); print(flush=True); input()"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(duckdb.IOException):
            open_index(tmp_path)
        other.communicate(b"\n")
    connection = open_index(tmp_path)
    with pytest.raises(duckdb.BinderException):
        open_index(tmp_path)
    connection.execute("SELECT * FROM part")
    connection.close()
