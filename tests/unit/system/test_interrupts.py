"""Ctrl+C while a program is being loaded ends it without a traceback."""

import os
import signal
import subprocess
import sys

import pytest

from rl_agent.system.terminal import EXIT_INTERRUPTED

LOADING = "import signal; signal.raise_signal(signal.SIGINT)\n"


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


@pytest.mark.parametrize("module", ["rl_agent.errors", "rl_agent.system.terminal"])
def test_before_the_verb_begins_the_signal_ends_it_without_a_word(program, module):
    done = program(module, LOADING)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_verb_interrupted_while_it_loads_ends_as_interrupted(program):
    done = program("rl_agent.cli.doctor", LOADING)
    assert (done.returncode, done.stderr) == (EXIT_INTERRUPTED, "")


def test_any_other_error_is_shown(program):
    assert "ValueError: other" in program("rl_agent.errors", "raise ValueError('other')\n").stderr
