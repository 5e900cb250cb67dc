"""Somebody who reads a page and types its commands, in a checkout and a home of their own.

What cannot be typed as it stands (another host's address, a model of 16 GB) is replaced, and each test shows
its replacements where it makes its reader. All else is typed literally: `python` is that of `.venv`, as after
`activate`.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rl_agent.paths import PROJECT_ROOT
from tests.unit.docs.documented_blocks import OF_COMMANDS, all_blocks

TREE = (
    "README.md",
    "scripts",
    "configs",
    "data",
    "benchmarks",
    "docs",
    "rl_agent",
    "requirements",
    "setup.py",
    "pyproject.toml",
)
STOP_TIMEOUT_S = 60
_VARIES = (
    (re.compile(r"(?:https?:/|(?<![\w.])~?)(?:/[\w.~:%-]+)+/?"), "PATH"),
    (re.compile(r"[+-]?\d(?:[\d,.:]*\d)?%?"), "0"),
)


def copy_project(folder: Path) -> Path:
    """A copy that shares the environment, so that nothing is written into the real one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TREE:
        source = PROJECT_ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
        else:
            shutil.copy2(source, folder / name)
    (folder / ".venv").symlink_to(PROJECT_ROOT / ".venv")
    return folder


def type_in(folder: Path, block: str, timeout_s: float = 1500, **variables: str) -> str:
    """Return the output of a block of commands, which has to end well."""
    done = subprocess.run(
        ["bash", "-euc", block],
        cwd=folder,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | variables,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def commands_of(block: str) -> list[str]:
    """The commands of a block one by one, as an interactive bash takes them; comments are left out."""
    commands, begun = [], ""
    for line in block.splitlines(keepends=True):
        begun += line
        read = subprocess.run(["bash", "-nc", begun], capture_output=True)
        is_whole = read.returncode == 0 and not read.stderr  # of a here-document without an end it only warns
        if is_whole and not begun.endswith("\\\n"):
            commands.append(begun.strip())
            begun = ""
    assert not begun, f"this command has no end: {begun}"
    return [command for command in commands if command and not command.startswith("#")]


@dataclass(frozen=True, slots=True)
class Running:
    """Commands in a terminal of their own that go on until somebody ends them."""

    process: "subprocess.Popen[bytes]"
    output: Path

    def printed(self) -> str:
        return self.output.read_text()

    def wait_until(self, is_so: Callable[[], object], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_so():
            assert self.process.poll() is None, (
                f"it ended with {self.process.returncode}:\n{self.printed()[-4000:]}"
            )
            assert time.monotonic() < deadline, f"it did not come in {timeout_s} s:\n{self.printed()[-4000:]}"
            time.sleep(0.1)

    def wait_for(self, text: str, timeout_s: float) -> None:
        self.wait_until(lambda: text in self.printed(), timeout_s)

    def ends_well(self, timeout_s: float) -> str:
        assert self.process.wait(timeout_s) == 0, self.printed()[-4000:]
        return self.printed()

    def stop(self) -> None:
        """End the commands and all that they started in their group, and wait until they are gone."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(STOP_TIMEOUT_S)
                self._wait_for_group()
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue

    def _wait_for_group(self) -> None:
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            os.killpg(self.process.pid, 0)
            time.sleep(0.1)


@contextmanager
def left_running(folder: Path, commands: str, output: Path, **variables: str) -> Iterator[Running]:
    """Commands that go on beside others, and are ended with the block."""
    with output.open("wb") as written:
        process = subprocess.Popen(
            ["bash", "-euc", commands],
            cwd=folder,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | variables,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    running = Running(process, output)
    try:
        yield running
    finally:
        running.stop()


class Reader:
    """Types the blocks of one page. `/home/user`, which is HOME, and `/shared` lie in `folder`."""

    def __init__(self, page: str, folder: Path, instead: Mapping[str, str] | None = None):
        self.page = PROJECT_ROOT / page
        self.checkout = copy_project(folder / "project")
        self.home, self.shared = folder / "user", folder / "shared"
        for place in (self.home, self.shared):
            place.mkdir()
        self._blocks = {
            text.lstrip(): text.lstrip() for kind, text in all_blocks(self.page) if kind in OF_COMMANDS
        }
        for written, typed in (instead or {}).items():
            self.replace(written, typed)
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{PROJECT_ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": "",
            "WANDB_MODE": "disabled",
        }
        self._number = 0

    def replace(self, written: str, typed: str) -> None:
        """Type a text instead of one that stands in the blocks."""
        assert any(written in text for text in self._blocks.values()), f"{self.page.name} lacks {written!r}"
        self._blocks = {block: text.replace(written, typed) for block, text in self._blocks.items()}

    def block(self, start: str) -> str:
        """The block of commands that begins with `start`, with what is typed instead."""
        (text,) = (text for written, text in self._blocks.items() if written.startswith(start))
        return text.replace("/home/user", str(self.home)).replace("/shared", str(self.shared))

    def commands(self, start: str) -> list[str]:
        return commands_of(self.block(start))

    def types(self, commands: str, timeout_s: float = 60) -> str:
        """Type commands, a block's or some of it, and return what they print; they have to end well."""
        return type_in(self.checkout, commands, timeout_s, **self.environment)

    def leaves_running(self, commands: str) -> AbstractContextManager[Running]:
        """Type commands into a terminal of their own; they are ended with the block."""
        self._number += 1
        output = self.home.parent / f"terminal-{self._number}"
        return left_running(self.checkout, commands, output, **self.environment)


def promised(page: Path, start: str) -> str:
    """The output that a page shows for the block of commands that begins with `start`: the block after it."""
    matches = [(language, text.lstrip()) for language, text in all_blocks(page)]
    at = next(n for n, (kind, text) in enumerate(matches) if kind in OF_COMMANDS and text.startswith(start))
    language, text = matches[at + 1]
    assert language not in OF_COMMANDS, f"{page.name} shows no output of {start!r}"
    return text


def shape(line: str) -> str:
    """A line whose numbers, times, paths and addresses are all alike, with one space between its words."""
    for pattern, name in _VARIES:
        line = pattern.sub(name, line)
    return " ".join(line.split())


def missing_lines(promised: str, printed: str) -> list[str]:
    """Lines that a page promises and that are not printed, in their order and by their shape.

    "…" stands for anything. Rows of one shape count once: a short run has fewer of them.
    """
    shapes = [shape(line) for line in printed.splitlines()]
    missing, at, before = [], 0, ""
    for line in promised.splitlines():
        wanted = shape(line)
        if not wanted or wanted == before:
            continue
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in wanted.split("…")))
        matches = next((n for n in range(at, len(shapes)) if pattern.search(shapes[n])), None)
        if matches is None:
            missing.append(line)
        else:
            at, before = matches + 1, wanted
    return missing
