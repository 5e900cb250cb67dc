"""Renders a few conversations with a model's chat template in a process that is ended if they do not end.

A template is a program that came with a model. Jinja's sandbox keeps it from files and modules, but lets it
compute for ever and fill the memory. The process is a fork: to import the tokenizer anew would cost half a
second of each plan.
"""

import os
import resource
import select
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.tool_template import check_images_of_tools, tool_format_of
from rl_agent.errors import ConfigError
from rl_agent.types import Observation

CPU_LIMIT_S = 10
TIMEOUT_S = 120.0
"""The wall clock allows for a machine without a spare core, and for a folder that is slow to read."""
MEMORY_LIMIT_BYTES = 2 << 30
"""The memory beyond what the planner has itself."""
_TOO_LARGE = 3
_ENDLESS = "computes without an end"
_LARGE = f"takes more than {MEMORY_LIMIT_BYTES >> 30} GiB of memory"
_PROBLEMS = {
    -signal.SIGXCPU: _ENDLESS,
    -signal.SIGKILL: _LARGE,  # the system ends what takes too much
    _TOO_LARGE: _LARGE,
}


def check_template_ends(folder: Path, variables: Mapping[str, Any]) -> None:
    """Raises ConfigError for a template that takes too long or too much; leaves other faults to its users."""
    child = os.fork()
    if child == 0:
        _try_in_child(folder, variables)
    problem = _problem_of(child)
    if problem is not None:
        raise ConfigError(f"{folder}: its chat template {problem}; give it another chat_template.jinja")


def _problem_of(child: int) -> str | None:
    """Wait for the child, which does not outlive this call."""
    ended = os.pidfd_open(child)
    has_ended = False
    try:
        watched = select.poll()
        watched.register(ended, select.POLLIN)
        has_ended = bool(watched.poll(1000 * TIMEOUT_S))
    finally:
        os.close(ended)
        if not has_ended:
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return _PROBLEMS.get(status) if has_ended else _ENDLESS


def _try_in_child(folder: Path, variables: Mapping[str, Any]) -> NoReturn:
    status = 0
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        _limit_this_process()
        _render(folder, variables)
    except MemoryError:
        status = _TOO_LARGE
    finally:
        os._exit(status)  # whatever else is wrong, whoever renders it says so


def _limit_this_process() -> None:
    spent_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    limit_s = int(spent_s) + CPU_LIMIT_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most_bytes = pages * resource.getpagesize() + MEMORY_LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    for number in (signal.SIGXCPU, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _render(folder: Path, variables: Mapping[str, Any]) -> None:
    """Render what a run renders. Raises MemoryError."""
    chat = ChatTokenizer.load(str(folder), variables)
    for render in (
        lambda: chat.start("Answer.", Observation("Hello.")),
        lambda: chat.extend((), Observation("Hello.")),
        lambda: tool_format_of(chat),
        lambda: check_images_of_tools(chat, "Answer."),
    ):
        try:
            render()
        except ConfigError:  # it takes no such conversation, which matters only to a run that has one
            continue
