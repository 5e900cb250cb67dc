"""All that a manager runs: the pool, its calls and runs, and what it writes down of them."""

import asyncio
import logging

from rl_agent.config.plan import PoolConfig
from rl_agent.pool.runtime.calls import Calls
from rl_agent.pool.runtime.history import PoolHistory, history_file
from rl_agent.pool.runtime.journal import Journal
from rl_agent.pool.runtime.journal_rows import wanted_writes
from rl_agent.pool.runtime.restore import Restore
from rl_agent.pool.runtime.runs import Runs
from rl_agent.pool.runtime.scaling import Scaling
from rl_agent.pool.runtime.service import Pool
from rl_agent.pool.runtime.waiting import WaitReport
from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.records import Request, Weights
from rl_agent.pool.schemas import ModelRequest, PublisherTaken, WeightsRequest

log = logging.getLogger(__name__)


class Runtime:
    """The parts of a manager."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._journal = Journal(config.journal.resolve()) if config.journal else None
        ended: asyncio.Queue[Request] = asyncio.Queue()
        self.pool = Pool(config, on_ended=ended.put_nowait)
        self.calls = Calls(self.pool, self._journal)
        self.runs = Runs(config, self.pool, self.calls, self._journal, ended)
        self.scaling = Scaling(
            config.scale,
            self.pool.state,
            self.pool.clock,
            self._journal,
            num_unread=lambda: self.pool.num_unread,
        )
        self._history = PoolHistory(history_file(self._journal.path)) if self._journal else None
        if self._history is not None:
            self.pool.on_engine_changed = self._history.changed
            self.pool.on_moved = self._history.moved
            self.scaling.on_changed = self._history.wanted_changed

    def restore(self) -> None:
        """Read the journal and submit again what waited or ran. Raises StoreError."""
        if self._journal is None:
            return
        restore = Restore(self._journal, self.pool.clock(), self.runs.new_run)
        restore.read()
        if restore.scaling is not None:
            self.scaling.restore(restore.scaling)
        for record in sorted(restore.wanted, key=lambda record: isinstance(record, PublisherTaken)):
            self.pool.handle(_wanted_event(record))  # what was taken of an earlier publisher stays
        self.calls.left = restore.calls
        self.runs.restore(restore.runs, restore.deadlines)
        counts = (len(restore.runs), self.pool.open_requests(), len(self.calls.left))
        log.info("journal %s: %d runs, %d requests continue, %d calls may", self._journal.path, *counts)

    async def run_jobs(self) -> None:
        """Record what happens, until cancelled."""
        async with asyncio.TaskGroup() as jobs:
            if self._journal is not None:
                jobs.create_task(self._journal.run(), name="write the journal")
            if self._history is not None:
                jobs.create_task(self._history.run(self.pool.state), name="history")
            jobs.create_task(self.calls.run(self._config.journal_interval_s), name="journal progress")
            jobs.create_task(self.scaling.run(), name="scaling")
            jobs.create_task(self.runs.record_ends(), name="record samples")
            waiting = WaitReport(
                self.pool.state,
                lambda: self.pool.open_requests() + self.pool.num_unread,
                timeout_s=self._config.request_timeout_s,
            )
            jobs.create_task(waiting.run(self.pool.clock), name="report waiting requests")

    def end(self) -> None:
        """Let those that wait for samples have what there is, and keep what calls have got for the next."""
        self.calls.is_over = True
        self.runs.end()

    async def want(self, request: ModelRequest | WeightsRequest | PublisherTaken) -> None:
        """Let the pool serve a model or weights from now on, also after a restart; stale ones are skipped.

        Likewise with whose weights they may be.
        """
        self.pool.handle(_wanted_event(request))
        if self._journal is not None:
            await self._journal.commit(wanted_writes(self.pool.state))


def weights_of(published: WeightsRequest) -> Weights:
    """Return a published version as the scheduler knows it."""
    useful_from = published.weight_version if published.useful_from is None else published.useful_from
    return Weights(**published.model_dump() | {"useful_from": useful_from})


def _wanted_event(record: ModelRequest | WeightsRequest | PublisherTaken) -> events.Event:
    if isinstance(record, PublisherTaken):
        return events.PlaceTaken(record.publisher)
    if isinstance(record, WeightsRequest):
        return events.WeightsWanted(weights_of(record))
    return events.ModelWanted(record.model, record.weight_version, record.is_rollback)
