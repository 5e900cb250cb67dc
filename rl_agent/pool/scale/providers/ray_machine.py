"""An actor of a Ray cluster that runs an engine's worker. Standard library alone: Ray carries it to its node.

The worker leads a process group of its own. It is told to drain by TERM and killed once its time is over;
if the actor dies, the kernel sends it TERM. Once the worker has ended the actor ends, and frees what it held.
"""

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


class RayMachine:
    """One actor, one worker of the pool."""

    def __init__(self, words: Sequence[str], drain_s: float, log: str) -> None:
        self._drain_s = drain_s
        self._told_at: float | None = None
        libc = ctypes.CDLL(None)
        with open(log, "ab") as output:  # noqa: PTH123
            self._worker = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
            )
        threading.Thread(target=self._end_with_worker, daemon=True).start()

    def is_leaving(self) -> bool:
        return self._told_at is not None

    def worker_pid(self) -> int:
        return self._worker.pid

    def leave(self) -> None:
        """Tell the worker to drain; from the first call on that comes after its time, kill it."""
        if self._told_at is None:
            self._told_at = time.monotonic()
        is_over = time.monotonic() - self._told_at > self._drain_s
        with suppress(ProcessLookupError):
            os.killpg(self._worker.pid, signal.SIGKILL if is_over else signal.SIGTERM)

    def _end_with_worker(self) -> None:
        self._worker.wait()
        with suppress(ProcessLookupError):
            os.killpg(self._worker.pid, signal.SIGKILL)
        os._exit(0)
