"""The process of a worker as its parent has it: started with a guard, ended with everything below it."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from rl_agent.env.remote.process_tree import descendants, marked
from rl_agent.env.remote.worker import BLOCKED_FILE, BlockedLoop

END_TIMEOUT_S = 6.0
"""A guard kills what is below it in far less; then it is killed itself."""
_STDERR = 2
_POLL_S = 0.01
_MARK = "RL_AGENT_ENV_WORKER"


class WorkerProcess:
    """A guard and the worker below it."""

    def __init__(self, guard: subprocess.Popen[bytes], folder: Path) -> None:
        self._guard = guard
        self._folder = folder
        """Its name, which is random, is also the mark of all that is started below."""

    @classmethod
    def start(cls) -> tuple["WorkerProcess", socket.socket]:
        """Start one; returns also the socket that it serves. To be called in a thread that lives on."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        folder = Path(tempfile.mkdtemp(prefix="rl-agent-env-"))
        single_threaded = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            guard = subprocess.Popen(
                [sys.executable, "-m", "rl_agent.env.remote.guard", str(os.getpid()), str(folder)],
                stdin=theirs.fileno(),
                stdout=_STDERR,
                env=os.environ | single_threaded | {_MARK: folder.name},
                start_new_session=True,
            )
        return cls(guard, folder), ours

    @property
    def pid(self) -> int:
        return self._guard.pid

    @property
    def has_ended(self) -> bool:
        return self._guard.poll() is not None

    def blocked(self) -> BlockedLoop | None:
        """Return what blocks the worker's event loop, if its watch has said so."""
        try:
            return msgspec.json.decode((self._folder / BLOCKED_FILE).read_bytes(), type=BlockedLoop)
        except (OSError, msgspec.DecodeError):
            return None

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
        if not await self.wait(END_TIMEOUT_S):
            self.kill()
            await self.wait(END_TIMEOUT_S)
        await asyncio.to_thread(self._clean_up)

    def _clean_up(self) -> None:
        """Do what a guard that was killed cannot do any more."""
        if (self._guard.poll() or 0) < 0:
            for pid in marked(f"{_MARK}={self._folder.name}".encode()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)

    def signal_end(self) -> None:
        """Tell the guard to end everything."""
        if not self.has_ended:
            self._guard.send_signal(signal.SIGTERM)
            self._guard.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the guard and all below it from here."""
        if self.has_ended:
            return
        for pid in (*descendants(self._guard.pid), self._guard.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
