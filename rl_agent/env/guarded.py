"""A command with its guard, as its owner has it: see `guard` for what ends when."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl_agent.env import guard

_INSIST_AFTER_S = 1.0 + guard.END_LIMIT_S
_POLL_S = 0.01


class Guarded:
    """Whoever starts `words` starts the command; `folder` is deleted after the end of all that it started."""

    def __init__(self, prefix: str, *, grace_s: float = 0.0) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))
        self._grace_s = grace_s
        self._pid_file = guard.pid_file(self.folder)

    def words(self, *command: str, max_mib: int = 0, among: str = "") -> list[str]:
        """Return the command with its guard.

        A process below that has `among` in its command line and takes more than `max_mib` MiB is killed.
        """
        limits = (str(self._grace_s), str(max_mib), among)
        return [
            *(sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(self.folder), *limits),
            *command,
        ]

    def start(self, *command: str, **how: Any) -> subprocess.Popen[bytes]:
        """Start the command with its guard, which is safe from its first instruction on.

        Signals that would end it before it has handlers wait. It is a process group of this session, because
        the kernel wakes a stopped group that loses its last parent in its session.
        """
        waiting = {signal.SIGTERM, signal.SIGHUP}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, waiting)
        try:
            return subprocess.Popen(self.words(*command), process_group=0, **how)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def pid(self) -> int:
        """Process id of the guard; 0 before it has begun and after its end."""
        try:
            pid = int(self._pid_file.read_text())
        except (OSError, ValueError):
            return 0
        return pid if guard.has_word(pid, os.fsencode(self.folder)) else 0

    def tell(self) -> None:
        """Tell the guard to end everything, also where it is stopped."""
        if pid := self.pid:
            for number in (signal.SIGTERM, signal.SIGCONT):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    async def end(self) -> None:
        """Wait until nothing is left, and insist if the guard does not. One that has not begun never will."""
        self.tell()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._grace_s + _INSIST_AFTER_S
        while self._pid_file.exists() and loop.time() < deadline:  # noqa: ASYNC110 - another process
            await asyncio.sleep(_POLL_S)
        if pid := self.pid:
            guard.kill((*guard.descendants(pid), pid))
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
