"""Collects the Python stacks of a node process, which writes them to a file on SIGUSR1, also while it hangs.

Only a process whose record names that file is sent the signal: it would end another one.
"""

import atexit
import faulthandler
import os
import signal
import time
from pathlib import Path
from typing import TextIO

from rl_agent.cluster.protocol.records import RankRecord

_ANSWER_S = 3.0
_POLL_S = 0.05
_open_files: list[TextIO] = []
"""faulthandler needs the file open for as long as the process lives."""


@atexit.register
def _close() -> None:
    if _open_files:
        faulthandler.unregister(signal.SIGUSR1)
    for file in _open_files:
        file.close()


def register(run_dir: Path, incarnation: str) -> str | None:
    """Write all stacks to a file on SIGUSR1; return its path, or None if it cannot be written."""
    path = run_dir / "stacks" / f"{incarnation}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="utf-8")
    except OSError:
        return None
    _open_files.append(file)
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
    return str(path)


def collect(record: RankRecord) -> str:
    """Return the present stacks of a node process of this host, or why there are none."""
    if record.stacks is None or not record.process.is_running:
        return "this process is gone, or writes no stacks"
    path = Path(record.stacks)
    before = path.stat().st_size
    os.kill(record.process.pid, signal.SIGUSR1)
    deadline, size = time.monotonic() + _ANSWER_S, before
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        grown = path.stat().st_size
        if grown == size > before:  # they are written in several pieces
            break
        size = grown
    return path.read_text(encoding="utf-8")[before:] or "did not answer: the process is stopped"
