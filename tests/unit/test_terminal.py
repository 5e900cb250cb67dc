"""What is printed cannot drive a terminal, and a reader that goes away ends nothing."""

import ast
import io
import logging
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from rl_agent import terminal
from rl_agent.cli.__main__ import main, verbs
from rl_agent.paths import PROJECT_ROOT

HOSTILE = "a\x1b[2J\x1b]0;title\x07\x9b31m\r\x08\x7f\u202eb\u2028c\ud800"


@contextmanager
def unread():
    """Stdout is a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", terminal.Output(stream, escapes=True))
        yield


def test_control_characters_become_escapes_and_lines_stay():
    shown = terminal.printable(f"é 日本\t{HOSTILE}\nnext")
    assert shown == "é 日本\ta\\x1b[2J\\x1b]0;title\\x07\\x9b31m\\r\\x08\\x7f\\u202eb\\u2028c\\ud800\nnext"


def test_a_log_line_cannot_be_forged(monkeypatch):
    monkeypatch.setattr(logging, "_logRecordFactory", terminal._Record)
    record = logging.getLogRecordFactory()(
        "x", logging.INFO, "f", 1, "peer says %s", ("no\n12:00:00 ok",), None
    )
    assert record.getMessage() == "peer says no\n    12:00:00 ok"


def test_a_table_keeps_its_colours_and_its_cells_have_none(monkeypatch):
    from rich.table import Table

    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal.Output(out, escapes=True))
    table = Table("task")
    table.add_row(HOSTILE[:12])
    console = terminal.console(width=80)
    console.print(table)
    console.print("sum\x1b[2J", style="bold")
    assert "\x1b[2J" not in out.getvalue()
    assert "\\x1b[2J" in out.getvalue()


def test_work_goes_on_when_the_reader_has_gone_and_the_end_tells_it():
    done = []

    def work():
        for number in range(3):
            print(number, flush=True)
            done.append(number)

    with unread(), pytest.raises(SystemExit) as ended:
        terminal.end(work)
    assert ended.value.code == terminal.EXIT_BROKEN_PIPE
    assert done == [0, 1, 2]


def test_a_failure_stays_a_failure_when_the_reader_has_gone():
    with unread(), pytest.raises(SystemExit) as ended:
        terminal.end(lambda: print("x") or 78)
    assert ended.value.code == 78


@pytest.mark.parametrize("verb", ["", *verbs()])
def test_no_help_minds_a_reader_that_has_gone(verb):
    with unread(), pytest.raises(SystemExit) as ended:
        terminal.end(lambda: main([*verb.split(), "--help"]))
    assert ended.value.code == terminal.EXIT_BROKEN_PIPE


@pytest.mark.parametrize(
    ("redirection", "code"),
    [("2>&1 >&-", 0), ("| true; exit ${PIPESTATUS[0]}", 141), (">/dev/full", 1)],
    ids=["stdout closed", "reader gone", "disk full"],
)
def test_the_process_ends_as_the_shell_has_it(redirection, code):
    script = f'"$0" -m rl_agent.cli --help {redirection}'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == (code == 1)


def test_every_script_guards_its_output():
    for folder in ("benchmarks", "data"):
        for path in sorted((PROJECT_ROOT / folder).rglob("*.py")):
            text = path.read_text()
            is_a_users = path.is_relative_to(PROJECT_ROOT / "data" / "tools")  # its stdout is a protocol
            if "__main__" in text and not is_a_users:
                assert "run_script(main)" in text.rpartition('if __name__ == "__main__":')[2], path


def test_nobody_makes_a_console_of_their_own():
    for path in sorted((PROJECT_ROOT / "rl_agent").rglob("*.py")):
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        made = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "Console"]
        assert not made or path.name == "terminal.py", path
