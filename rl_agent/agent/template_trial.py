"""Renders a few conversations with a model's chat template in a process that is ended if they do not end.

A template is a program that came with a model. Jinja's sandbox keeps it from files and modules, but lets it
compute for ever and fill the memory. This module is also that process: `python -m … FOLDER SECONDS`,
which reads the variables of the template as JSON from stdin.
"""

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_agent.errors import ConfigError

CPU_LIMIT_S = 10
TIMEOUT_S = 120.0
"""The wall clock allows for a machine without a spare core, and for a folder that is slow to read."""
MEMORY_LIMIT_BYTES = 2 << 30
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
    words = json.dumps(dict(variables)).encode()
    command = [sys.executable, "-P", "-m", __name__, str(folder), str(CPU_LIMIT_S)]
    nothing = subprocess.DEVNULL
    try:
        done = subprocess.run(command, input=words, stdout=nothing, stderr=nothing, timeout=TIMEOUT_S)
        problem = _PROBLEMS.get(done.returncode)
    except subprocess.TimeoutExpired:
        problem = _ENDLESS
    if problem is not None:
        raise ConfigError(f"{folder}: its chat template {problem}; give it another chat_template.jinja")


def main(folder: str, cpu_limit_s: str) -> None:
    """Render what a run renders, within the limits. Raises MemoryError."""
    from rl_agent.agent.chat import ChatTokenizer
    from rl_agent.agent.tool_template import check_images_of_tools, tool_format_of
    from rl_agent.types import Observation

    spent_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    limit_s = int(spent_s) + int(cpu_limit_s)
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    chat = ChatTokenizer.load(folder, json.load(sys.stdin))
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


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except MemoryError:
        sys.exit(_TOO_LARGE)
