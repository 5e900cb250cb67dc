"""Ctrl+C while a program is being loaded ends it without a traceback."""

from rl_agent.system.interrupts import is_interrupt

import os
import signal
import subprocess
import sys

import pytest

from rl_agent.system.terminal import EXIT_INTERRUPTED

LOADING = "import signal; signal.raise_signal(signal.SIGINT)\n"
PYDANTIC = r"raise ValueError('Error building \"x\" validator:\n  KeyboardInterrupt: ')" + "\n"


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Runs `python -m rl_agent.cli doctor` with a module that it loads replaced by these lines."""

    def run(module, lines):
        path = tmp_path / "sitecustomize.py"
        finder = f"""
import sys, importlib.abc, importlib.util
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, self) if name == {module!r} else None
    def exec_module(self, module):
        exec(compile({lines!r}, 'loaded', 'exec'), vars(module))
sys.meta_path.insert(0, Finder())
"""
        path.write_text(finder)
        command = [sys.executable, "-m", "rl_agent.cli", "doctor", "--log-path", str(tmp_path)]
        env = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)

    return run


@pytest.mark.parametrize("lines", [LOADING, PYDANTIC])
@pytest.mark.parametrize("module", ["rl_agent.errors", "rl_agent.system.terminal"])
def test_before_the_verb_begins_the_signal_ends_it_without_a_word(program, module, lines):
    done = program(module, lines)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize("lines", [LOADING, PYDANTIC])
def test_a_verb_interrupted_while_it_loads_ends_as_interrupted(program, lines):
    done = program("rl_agent.cli.doctor", lines)
    assert (done.returncode, done.stderr) == (EXIT_INTERRUPTED, "")


def test_any_other_error_is_shown(program):
    assert "ValueError: other" in program("rl_agent.errors", "raise ValueError('other')\n").stderr


@pytest.mark.parametrize(
    "text",
    [
        "the worker ended:\n  KeyboardInterrupt: ",
        'Error building "x" validator:\n  KeyboardInterrupt: is no type',
        "KeyboardInterrupt",
    ],
)
def test_an_error_that_only_quotes_an_interrupt_is_none(text):
    assert not is_interrupt(ValueError(text))


def test_an_interrupt_inside_a_nested_validator_is_one():
    nested = 'Error building "a" validator:\n  SchemaError: Error building "b" validator:\n'
    assert is_interrupt(ValueError(nested + "  KeyboardInterrupt: "))
