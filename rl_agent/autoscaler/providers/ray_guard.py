"""Runs the worker of one actor of Ray and ends with it. Standard library alone: the actor gets this text.

    PYTHON - ALIVE ENDED DRAIN_S WORDS…

ALIVE is a pipe that closes when the worker is to leave, also because the actor died: the worker's process
group gets TERM, and KILL after DRAIN_S or once the worker has ended. ENDED closes with this process. It is no
child of the actor, for Ray kills the children of an actor that is killed.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def guard(alive: int, drain_s: float, words: Sequence[str]) -> None:
    """Run the worker until it ends or, after `alive` was closed, until its time is over."""
    libc = ctypes.CDLL(None)
    worker = subprocess.Popen(
        list(words),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    end = os.pidfd_open(worker.pid)
    if end not in select.select([end, alive], [], [])[0]:
        _signal(worker.pid, signal.SIGTERM)
        select.select([end], [], [], drain_s)
    _signal(worker.pid, signal.SIGKILL)  # before the wait: its group's number is not given to others yet
    worker.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__" and os.fork() == 0:
    guard(int(sys.argv[1]), float(sys.argv[3]), sys.argv[4:])
