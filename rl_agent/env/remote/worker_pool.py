"""The worker processes of this machine: started when needed, watched, replaced, ended.

    started ─► takes episodes ─► retiring (episodes, age, memory) ─► ended when its last episode ends
                  └─ crashed, or its event loop silent for `timeout_s`: ended, its episodes lose an attempt

A worker and everything below it is this pool's: it ends with the pool, and by its guard also where this
process is killed. The pool belongs to one event loop.
"""

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from rl_agent.env.guard import descendants, own_bytes
from rl_agent.env.remote.caller import Caller
from rl_agent.env.remote.instance import Place, RemoteInstance
from rl_agent.env.remote.kept_workers import KeptWorker, KeptWorkers
from rl_agent.env.remote.placement import (
    MOST_A_WORKER,
    WorkerLimits,
    is_out_of_bounds,
    least_loaded,
    level_of,
    reason_to_replace,
    workers_of_level,
)
from rl_agent.env.remote.stream import FrameStream
from rl_agent.env.remote.wire import Seen
from rl_agent.env.remote.worker import WorkerSetup
from rl_agent.errors import EnvironmentLost, EnvironmentUnavailable, deliberate

log = logging.getLogger(__name__)
START_TIMEOUT_S = 120.0
CLOSE_TIMEOUT_S = 5.0
"""Seconds that workers have, at the end of the pool, to close their instances."""
_LOOK_AT_MEMORY_S = 5.0
_MOST_FAILED_STARTS = 3
_START_PATIENCE_S = 5.0
"""A worker that starts is waited for this long before its episodes go to the others."""
_MIB = 2**20


class EnvironmentWorker:
    """One worker as the pool sees it; a `Place` of its instances."""

    def __init__(self, level: int, kept: KeptWorker) -> None:
        self.level = level
        self.process = process = kept.process
        self.instances: set[int] = set()
        self.episodes = kept.episodes
        self.started_at = kept.started_at
        self.retiring = ""
        """The reason that it takes no more episodes."""
        self.stream: FrameStream | None = None
        self.caller = Caller(f"environment worker {process.pid}", self._send)
        self.is_ready = False
        self.is_expected_to_end = False
        self.has_answered = asyncio.Event()
        """Is set once the worker has answered, or was lost before it could."""
        self.caller.on_change = self.caller.on_pong = self.has_answered.set
        self.on_leave: Callable[[], None] = lambda: None

    def _send(self, frame: bytes) -> None:
        if self.stream is not None:
            self.stream.send_soon(frame)

    async def images(self, instance: int, seen: Seen) -> tuple[str, ...]:
        return seen.paths

    def loss(self, instance: int, error: EnvironmentLost | EnvironmentUnavailable) -> Exception:
        return error

    def release(self) -> KeptWorker | None:
        """Return the worker for another pool; None if it is of no further use or something runs in it."""
        is_idle = self.is_ready and not self.instances and not self.retiring and self.caller.lost is None
        connected = self.stream.release() if is_idle and self.stream is not None else None
        return KeptWorker(self.process, connected, self.episodes, self.started_at) if connected else None

    def leave(self, instance: int, *, is_closed: bool) -> None:
        self.instances.discard(instance)
        if not is_closed and self.caller.lost is None:
            self.retiring = self.retiring or "an environment in it did not close"
        self.on_leave()


class WorkerPool:
    """Places for instances in at most so many workers; opened by `open_workers`."""

    make_timeout_s = None  # a worker that is silent while a constructor runs is ended

    def __init__(
        self, setup: WorkerSetup, limits: WorkerLimits, jobs: asyncio.TaskGroup, kept: KeptWorkers
    ) -> None:
        self._setup = setup
        self._kept = kept
        self._limits = limits
        self._jobs = jobs
        self._workers: list[EnvironmentWorker] = []
        self._starting: Counter[int] = Counter()
        """Workers of each level that have not answered yet."""
        self._changed = asyncio.Event()
        self._numbers = itertools.count(1)
        self._has_started = False
        self._failed_starts = 0
        """Failed starts in a row; one may be killed while it starts."""
        self._is_closed = False

    def create(self, kind: str, crashes: int = 0) -> RemoteInstance:
        """Make an instance that takes a place when it is reset."""
        return RemoteInstance(self, kind, crashes)

    def next_number(self) -> int:
        return next(self._numbers)

    def is_full(self, place: Place) -> None:
        """Workers here have as many places as are wanted."""

    @property
    def pids(self) -> list[int]:
        """The guards of the workers that live."""
        return [worker.process.pid for worker in self._workers]

    async def take(self, instance: int, crashes: int) -> EnvironmentWorker:
        """Wait for a place. Raises EnvironmentUnavailable or EnvironmentLost if a worker does not start."""
        level = level_of(crashes)
        patient_until = time.monotonic() + _START_PATIENCE_S
        while True:
            open_ones = [worker for worker in self._alive(level) if not worker.retiring]
            index = least_loaded([len(worker.instances) for worker in open_ones], MOST_A_WORKER[level])
            starting = self._starting[level]
            may_start = len(open_ones) + starting < workers_of_level(level, self._limits.workers)
            is_shared = index is not None and bool(open_ones[index].instances)
            is_patient = bool(starting) and time.monotonic() < patient_until
            if index is not None and not (is_shared and (may_start or is_patient)):
                worker = open_ones[index]
                worker.instances.add(instance)
                worker.episodes += 1
                self._retire_where_due(worker)
                return worker
            if may_start:
                self._starting[level] += 1
                job = self._jobs.create_task(self._start(level), name="start an environment worker")
                await asyncio.wait([job])
                problem = job.result()
                self._failed_starts = 0 if problem is None else self._failed_starts + 1
                if problem is not None and self._failed_starts >= _MOST_FAILED_STARTS:
                    raise problem
                continue
            self._changed.clear()
            await self._changed.wait()

    def _alive(self, level: int) -> list[EnvironmentWorker]:
        """Return the workers of a level that may be asked."""
        alive = [worker for worker in self._workers if worker.is_ready and worker.caller.lost is None]
        return [worker for worker in alive if worker.level == level]

    async def _start(self, level: int) -> Exception | None:
        """Start a worker; returns why it did not start."""
        try:
            return await self._started(level)
        finally:
            self._starting[level] -= 1
            self._changed.set()

    async def _started(self, level: int) -> Exception | None:
        kept = self._kept.take(self._setup)
        worker = EnvironmentWorker(level, kept)
        worker.on_leave = lambda: self._after_leave(worker)
        self._workers.append(worker)
        try:
            worker.stream = await FrameStream.over(
                kept.connected, worker.caller.receive, lambda: self._on_closed(worker)
            )
            worker.caller.ping()
            async with asyncio.timeout(START_TIMEOUT_S):
                await worker.has_answered.wait()
            if worker.caller.lost is not None:
                raise worker.caller.lost
        except (OSError, TimeoutError, EnvironmentLost) as error:
            await self._end(worker)
            why = f"an environment worker does not start: {error or type(error).__name__}"
            if self._has_started:
                return EnvironmentLost(why)
            return EnvironmentUnavailable(f"{why}; the lines above say why")
        worker.is_ready = True
        self._has_started = True
        return None

    def _on_closed(self, worker: EnvironmentWorker) -> None:
        if not worker.is_expected_to_end and not self._is_closed:
            self._jobs.create_task(self._has_crashed(worker), name="a worker has ended")

    async def _has_crashed(self, worker: EnvironmentWorker) -> None:
        await worker.process.wait(CLOSE_TIMEOUT_S)
        how = worker.process.describe_end()
        if not worker.process.was_told_to_end:
            log.warning("%s is lost with %d episodes: %s", worker.caller.name, len(worker.instances), how)
        worker.caller.lose(EnvironmentLost(how, is_suspect=True))
        await self._end(worker)

    async def _end(self, worker: EnvironmentWorker) -> None:
        worker.is_expected_to_end = True
        worker.caller.lose(EnvironmentLost("it was ended"))
        if worker.stream is not None:
            worker.stream.abort()
        await worker.process.end()
        with suppress(ValueError):
            self._workers.remove(worker)
        self._changed.set()

    def _after_leave(self, worker: EnvironmentWorker) -> None:
        self._retire_where_due(worker)
        is_over = not worker.instances and (worker.retiring or worker.level > 0)
        if is_over and worker.caller.lost is None and not self._is_closed:
            worker.caller.lose(EnvironmentLost(worker.retiring or "its episode is over"))
            self._jobs.create_task(self._retire(worker), name="end a worker")
        self._changed.set()

    async def _retire(self, worker: EnvironmentWorker) -> None:
        """End a worker without instances: it may close what they shared first."""
        log.info("%s ends: %s", worker.caller.name, worker.caller.lost)
        await self._close(worker)
        await self._end(worker)

    async def _close(self, worker: EnvironmentWorker) -> None:
        worker.is_expected_to_end = True
        if worker.stream is not None:
            worker.stream.close()
        await worker.process.wait(CLOSE_TIMEOUT_S)

    def _retire_where_due(self, worker: EnvironmentWorker, rss_mib: float = 0.0) -> None:
        if not worker.retiring:
            age_s = time.monotonic() - worker.started_at
            worker.retiring = reason_to_replace(
                self._limits, episodes=worker.episodes, age_s=age_s, rss_mib=rss_mib
            )

    # --- watching ---
    async def watch(self) -> None:
        """Look for workers that hang or grow, until cancelled."""
        interval = min(1.0, self._limits.timeout_s / 4)
        looked_at = time.monotonic()
        while True:
            before = time.monotonic()
            await asyncio.sleep(interval)
            is_late = time.monotonic() - before > 3 * interval  # this process itself was not running
            for worker in [candidate for candidate in self._workers if candidate.caller.lost is None]:
                if is_late:
                    worker.caller.excuse()
                elif worker.caller.silent_s > self._limits.timeout_s:
                    self._is_hung(worker)
                worker.caller.ping()
            self._changed.set()  # whoever waits for a worker that starts may have lost patience
            if time.monotonic() - looked_at > min(_LOOK_AT_MEMORY_S, self._limits.max_age_s):
                looked_at = time.monotonic()
                await self._look_at_memory()

    def _is_hung(self, worker: EnvironmentWorker) -> None:
        message = f"it has not answered for {worker.caller.silent_s:.0f} s"
        log.warning("%s is ended with %d episodes: %s", worker.caller.name, len(worker.instances), message)
        worker.caller.lose(EnvironmentLost(message, is_suspect=True))
        self._jobs.create_task(self._end(worker), name="end a worker")

    async def _look_at_memory(self) -> None:
        rss_bytes = await asyncio.to_thread(_memory_of, self.pids)
        for worker in [
            candidate for candidate in self._workers if candidate.is_ready and candidate.caller.lost is None
        ]:
            rss_mib = rss_bytes.get(worker.process.pid, 0) / _MIB
            if is_out_of_bounds(self._limits, rss_mib):
                message = f"it uses {rss_mib:.0f} MiB, twice env_config.worker_max_rss_mib"
                log.warning("%s is ended: %s", worker.caller.name, message)
                worker.caller.lose(EnvironmentLost(message, is_suspect=True))
                self._jobs.create_task(self._end(worker), name="end a worker")
                continue
            self._retire_where_due(worker, rss_mib)
            self._after_leave(worker)

    async def close(self) -> None:
        """Keep the idle workers and end the others; those who close in time close what lives in them."""
        self._is_closed = True
        if self._kept.is_open:
            self._keep_idle()
        workers = list(self._workers)
        for worker in workers:
            worker.caller.lose(EnvironmentLost("the rollout is over"))
        try:
            await asyncio.gather(*(self._close(worker) for worker in workers))
        finally:
            for worker in workers:
                worker.process.signal_end()
            await asyncio.gather(*(self._end(worker) for worker in workers))

    def _keep_idle(self) -> None:
        for worker in [candidate for candidate in self._workers if candidate.level == 0]:
            if (kept := worker.release()) is not None:
                self._kept.keep(self._setup, kept)
                self._workers.remove(worker)


def _memory_of(pids: list[int]) -> dict[int, int]:
    """Return the memory, in bytes, of each process and all below it."""
    return {pid: own_bytes((pid, *descendants(pid))) for pid in pids}


@asynccontextmanager
async def open_workers(
    setup: WorkerSetup, limits: WorkerLimits, kept: KeptWorkers | None = None
) -> AsyncIterator[WorkerPool]:
    """Give a pool of workers that ends with its block; it takes those of `kept` and leaves idle ones."""
    try:
        async with asyncio.TaskGroup() as jobs:
            pool = WorkerPool(setup, limits, jobs, kept or KeptWorkers())
            watching = jobs.create_task(pool.watch(), name="watch environment workers")
            try:
                yield pool
            finally:
                watching.cancel()
                await pool.close()
    except BaseExceptionGroup as group:
        raise deliberate(group) from None
