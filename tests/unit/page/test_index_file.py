"""An index is opened with its content, and one that is taken is left alone."""

import subprocess
import sys

import duckdb
import pytest

from rl_agent.page.index_file import FILE, open_index


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
