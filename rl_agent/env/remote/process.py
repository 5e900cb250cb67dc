"""The process of a worker as its parent has it: started with a guard, ended with everything below it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

from rl_agent.env.guarded import Guarded

_REAP_TIMEOUT_S = 1.0
_STDERR = 2
_POLL_S = 0.01


class WorkerProcess:
    """A worker with its guard."""

    def __init__(self, guarded: Guarded, process: subprocess.Popen[bytes]) -> None:
        self._guarded = guarded
        self._guard = process

    @classmethod
    def start(cls) -> tuple["WorkerProcess", socket.socket]:
        """Start one; returns also the socket that it serves."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        guarded = Guarded("rl-agent-env-")
        worker = (sys.executable, "-P", "-m", "rl_agent.env.remote.worker", str(guarded.folder))
        single_threaded = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            process = guarded.start(
                *worker, stdin=theirs.fileno(), stdout=_STDERR, env=os.environ | single_threaded
            )
        return cls(guarded, process), ours

    @property
    def pid(self) -> int:
        """Process id of the guard."""
        return self._guard.pid

    @property
    def has_ended(self) -> bool:
        return self._guard.poll() is not None

    @property
    def was_told_to_end(self) -> bool:
        """Return whether it ended by TERM, as all of a run do when it is stopped."""
        return self._guard.poll() == 128 + signal.SIGTERM

    def describe_end(self) -> str:
        """Return how the worker ended, in words."""
        code = self._guard.poll()
        if code is None:
            return "it closed its socket"
        if code > 128:
            with suppress(ValueError):
                return f"it was ended by {signal.Signals(code - 128).name}"
        return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    async def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; False if it has not by then."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not self.has_ended:
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def end(self) -> None:
        """End the worker and everything below it now, also where it is stopped."""
        self.signal_end()
        await self._guarded.end()
        if not await self.wait(_REAP_TIMEOUT_S):
            self._guard.kill()
            await self.wait(_REAP_TIMEOUT_S)

    def signal_end(self) -> None:
        """Tell the guard to end everything."""
        if not self.has_ended:
            self._guard.send_signal(signal.SIGTERM)
            self._guard.send_signal(signal.SIGCONT)
