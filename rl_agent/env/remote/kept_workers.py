"""Worker processes that start while an engine loads, and live from one rollout of a process to the next.

    start ─► kept ─► a pool takes it ─► its pool ends: kept again if nothing runs in it, else ended
               └─ the process ends, or workers of another setup are wanted: ended

A worker imports what its environments need, which may take longer than a short rollout does.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from rl_agent.env.remote.process import WorkerProcess
from rl_agent.env.remote.stream import framed
from rl_agent.env.remote.worker import WorkerSetup, write_setup

END_LIMIT_S = 1.0
"""The time for workers to close what their environments share; their guards end what is left."""
_POLL_S = 0.01


@dataclass(slots=True)
class KeptWorker:
    """A worker between two pools."""

    process: WorkerProcess
    connected: socket.socket
    episodes: int = 0
    started_at: float = field(default_factory=time.monotonic)


class KeptWorkers:
    """Workers of one setup that no pool has at the moment; pools give theirs back while it `is_open`."""

    def __init__(self) -> None:
        self.is_open = False
        self._setup: WorkerSetup | None = None
        self._workers: list[KeptWorker] = []

    def start(self, setup: WorkerSetup, count: int) -> int:
        """Start workers until `count` are kept; returns how many were started. Raises OSError."""
        self._use(setup)
        missing = max(0, count - len(self._workers))
        self._workers += [_start(setup) for _ in range(missing)]
        return missing

    def take(self, setup: WorkerSetup) -> KeptWorker:
        """Return a worker that is kept, else one that is started now. Raises OSError."""
        self._use(setup)
        while self._workers:
            worker = self._workers.pop(0)
            if not worker.process.has_ended:
                return worker
            worker.connected.close()
        return _start(setup)

    def keep(self, setup: WorkerSetup, worker: KeptWorker) -> None:
        """Keep a worker in which nothing runs."""
        self._use(setup)
        self._workers.append(worker)

    def end(self) -> None:
        """End all workers that are kept."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.connected.close()
        deadline = time.monotonic() + END_LIMIT_S
        while any(not worker.process.has_ended for worker in workers) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        for worker in workers:
            worker.process.signal_end()

    def _use(self, setup: WorkerSetup) -> None:
        setup = replace(setup, begin_with=())
        if setup != self._setup:
            self.end()
        self._setup = setup


def _start(setup: WorkerSetup) -> KeptWorker:
    process, connected = WorkerProcess.start()
    connected.setblocking(True)  # a setup beyond what the socket holds waits for the worker to read it
    with suppress(OSError):  # it has ended already, which whoever takes it finds
        connected.sendall(framed(write_setup(setup)))
    connected.setblocking(False)
    return KeptWorker(process, connected)


KEPT = KeptWorkers()
"""Those of this process."""


@contextmanager
def keeping_workers() -> Iterator[None]:
    """Keep the workers of this process between pools until the block ends."""
    KEPT.is_open = True
    try:
        yield
    finally:
        KEPT.is_open = False
        KEPT.end()
