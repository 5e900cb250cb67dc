"""Printed text cannot drive a terminal, and a pipe without a reader ends the program."""

import io
import logging
import re
import subprocess
import sys

import pytest

from rl_agent.paths import PROJECT_ROOT
from rl_agent.system import terminal

HOSTILE = "a\x1b[2J\x1b]0;title\x07\x9b31m\r\x08\x7f\u202eb\u2028c\ud800"


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
    monkeypatch.setattr(sys, "stdout", terminal.Output(out))
    table = Table("task")
    table.add_row(HOSTILE[:12])
    console = terminal.console(width=80)
    console.print(table)
    console.print("sum\x1b[2J", style="bold")
    assert "\x1b[2J" not in out.getvalue()
    assert "\\x1b[2J" in out.getvalue()


@pytest.mark.parametrize(
    ("body", "redirection", "code"),
    [
        ("print('x')", "2>&1 >&-", 0),
        ("wait.poll(); print('x')", "| true", 141),
        ("wait.poll(); print('x'); sys.exit(0)", "| true", 141),
        ("wait.poll(); [print('x') for _ in range(10**6)]", "| true", 141),
        ("raise BrokenPipeError('of a socket')", "| cat", 1),
    ],
)
def test_a_process_without_a_reader_ends_by_sigpipe(body, redirection, code):
    program = f"""
import select, sys
from rl_agent.system import terminal
wait = select.poll()  # until the reader has gone
wait.register(1, 0)
def main(): {body}
terminal.run_script(main)
"""
    script = f'"$0" -c "$1" {redirection}; exit "${{PIPESTATUS[0]}}"'
    done = run_bash(script, program)
    assert done.returncode == code
    assert ("of a socket" in done.stderr) if code == 1 else not done.stderr


@pytest.mark.parametrize("body", ["print('x')", "print('x' * 10**6)", "[print('x') for _ in range(10**6)]"])
def test_a_stdout_on_a_full_disk_is_named_in_one_line(body):
    program = f"from rl_agent.system import terminal\nterminal.run_script(lambda: {body})"
    done = run_bash('"$0" -c "$1" > /dev/full', program)
    assert (done.returncode, done.stderr) == (1, "stdout: No space left on device\n")


def run_bash(script, program):
    return subprocess.run(
        ["bash", "-c", script, sys.executable, program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_script_guards_its_output():
    for folder in ("benchmarks", "data"):
        for path in sorted((PROJECT_ROOT / folder).rglob("*.py")):
            text = path.read_text()
            is_a_users = path.is_relative_to(PROJECT_ROOT / "data" / "tools")  # its stdout is a protocol
            if "__main__" in text and not is_a_users:
                assert "run_script(main)" in text.rpartition('if __name__ == "__main__":')[2], path


def test_nobody_makes_a_console_of_their_own():
    for path in sorted((PROJECT_ROOT / "rl_agent").rglob("*.py")):
        assert path.name == "terminal.py" or not re.search(r"\bConsole\(", path.read_text()), path
