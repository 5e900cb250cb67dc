"""The batch API for other trainers: a run submits requests, and its finished groups come back as a stream."""

import asyncio
import time
from itertools import count

from rl_agent.config.plan import PoolConfig
from rl_agent.pool.runtime.calls import Calls
from rl_agent.pool.runtime.detokenize import text_of
from rl_agent.pool.runtime.journal import Journal, Write
from rl_agent.pool.runtime.journal_rows import (
    Key,
    acknowledged_writes,
    dropped_writes,
    end_writes,
    submission_write,
)
from rl_agent.pool.runtime.results import Run, sample_of
from rl_agent.pool.runtime.service import Pool
from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.records import Order, Request, RequestId
from rl_agent.pool.schemas import EndedRequest, RunRequest

AT_ONCE = 256
"""The requests that are taken before other jobs have their turn."""
STATED = {"repetition_penalty": 1.0, "skip_special_tokens": False}
"""Sampling parameters of a request that states no other: a model's own would not be in what was recorded."""


class QueueFull(Exception):
    """The pool holds as many open requests as it may."""


class Runs:
    """The runs of a pool. `ended` is the queue of their requests that have ended there."""

    def __init__(
        self,
        config: PoolConfig,
        pool: Pool,
        calls: Calls,
        journal: Journal | None,
        ended: asyncio.Queue[Request],
    ) -> None:
        self._config, self._pool, self._calls, self._journal = config, pool, calls, journal
        self._ended = ended
        self._serials = count()
        self.by_name: dict[str, Run] = {}
        self.is_over = False
        """Nothing more will come from this manager: whoever waits for samples gets what there is."""

    def new_run(self, name: str) -> Run:
        return Run(name, next(self._serials))

    def restore(self, runs: dict[str, Run], deadlines: dict[Key, float]) -> None:
        """Continue the runs of a journal, whose requests have these deadlines by the pool's clock."""
        self.by_name = runs
        for run in runs.values():
            for item in sorted(run.open.values(), key=_longest_first):
                self._hand_over(run, item, deadlines[_key(run, item.id)])

    def end(self) -> None:
        self.is_over = True
        for run in self.by_name.values():
            run.changed.set()

    async def submit(self, name: str, items: list[RunRequest]) -> tuple[int, int]:
        """Submit requests durably; return how many are new and known. Raises QueueFull."""
        now, writes, deadlines = self._pool.clock(), dict[str, Write](), dict[str, float]()
        ahead_s = time.time() - now
        for number, item in enumerate(items, start=1):
            deadlines[item.id] = now + (item.timeout_s or self._config.request_timeout_s)
            writes[item.id] = submission_write(name, item, ahead_s + deadlines[item.id])
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        run = self.by_name.get(name) or self.new_run(name)
        new = {item.id: item for item in items if item.id not in run.ids}
        if self._pool.open_requests() + len(new) > self._config.max_open_requests:
            raise QueueFull
        self.by_name[name] = run
        for item in new.values():
            run.submit(item)  # before the first await: they are known from now on
        await self._commit([writes[request_id] for request_id in new])
        for number, item in enumerate(sorted(new.values(), key=_longest_first), start=1):
            if item.id in run.open:  # else the run was dropped meanwhile
                self._hand_over(run, item, deadlines[item.id])
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return len(new), len(items) - len(new)

    async def acknowledge(self, run: Run, cursor: int) -> None:
        if cursor > run.acknowledged:
            run.acknowledge(cursor)
            await self._commit(acknowledged_writes(run.name, cursor))

    def is_due(self, run: Run, at_least: int) -> bool:
        """Return whether so many samples wait for their consumer, or no more will come."""
        return len(run.samples) >= at_least or run.is_finished or self.is_over

    async def wait(self, run: Run, at_least: int) -> None:
        """Wait until samples are due."""
        while not self.is_due(run, at_least):
            run.changed.clear()
            await run.changed.wait()

    async def drop(self, name: str) -> None:
        """End a run: cancel its open requests and forget its samples."""
        run = self.by_name.pop(name, None)
        if run is None:
            return
        for request_id in list(run.open):
            cancelled = RequestId(name, request_id, run.serial)
            self._pool.handle(events.Cancelled(cancelled))
            self._calls.end(_key(run, request_id), cancelled)
        run.open.clear()
        await self._commit(dropped_writes(name))
        run.changed.set()

    async def record_ends(self) -> None:
        """Record what ends, until cancelled: a sample is in the journal before its consumer sees it."""
        while True:
            ended = [await self._ended.get()]
            while not self._ended.empty():
                ended.append(self._ended.get_nowait())
            samples = [(request, sample_of(request, await text_of(request, self._pool))) for request in ended]
            writes: list[Write] = []
            shown: list[tuple[Run, list[EndedRequest]]] = []
            for request, sample in samples:
                self._calls.end(("request", *request.request_id[:2]), request.request_id)
                if (run := self._run_of(request)) is not None:  # it was not dropped
                    shown.append((run, run.end(sample)))
                    writes += end_writes(_key(run, sample.id), sample, shown[-1][1])
            await self._commit(writes)
            for run, complete in shown:
                run.show(complete)
            self._pool.handle(events.Forgotten(tuple(request.request_id for request in ended)))

    def _run_of(self, request: Request) -> Run | None:
        """Return the run in which a request of the pool is open."""
        name, request_id, serial = request.request_id
        run = self.by_name.get(name)
        return run if run is not None and serial == run.serial and request_id in run.open else None

    def _hand_over(self, run: Run, item: RunRequest, deadline: float) -> None:
        order = Order(
            request_id=RequestId(run.name, item.id, run.serial),
            prompt_token_ids=item.prompt_token_ids,
            max_tokens=item.max_tokens,
            params=STATED | item.sampling,
            deadline=deadline,
            group=item.group,
            min_weight_version=item.min_weight_version,
            expected_tokens=item.expected_tokens,
            vocab_size=item.vocab_size,
        )
        self._calls.begin(_key(run, item.id), order)

    async def _commit(self, writes: list[Write]) -> None:
        if self._journal is not None:
            await self._journal.commit(writes)


def _key(run: Run, request_id: str) -> Key:
    return "request", run.name, request_id


def _longest_first(item: RunRequest) -> int:
    """Return the sort key by which the longest response begins first, so that all end soonest."""
    return -(item.expected_tokens or 0)
