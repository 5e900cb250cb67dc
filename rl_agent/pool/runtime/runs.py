"""Batches of requests: submitted to the pool, their samples collected, all of it in the journal."""

import asyncio
import logging
from collections.abc import Iterable, Iterator

from rl_agent.config import PoolConfig
from rl_agent.pool.runtime.calls import Calls
from rl_agent.pool.runtime.detokenize import text_of
from rl_agent.pool.runtime.history import PoolHistory, history_file
from rl_agent.pool.runtime.journal import Journal, Write
from rl_agent.pool.runtime.journal_rows import (
    CallIdentity,
    Key,
    acknowledged_writes,
    dropped_writes,
    end_writes,
    progress_end,
    progress_writes,
    submission_write,
    wanted_writes,
)
from rl_agent.pool.runtime.restore import Restore
from rl_agent.pool.runtime.results import ClockOffsets, Run, Submission, failed_sample, sample_of
from rl_agent.pool.runtime.scaling import Scaling, scaling_file
from rl_agent.pool.runtime.service import Pool
from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.migration import can_continue
from rl_agent.pool.scheduler.records import Order, PartialResponse, Request, RequestId, Weights
from rl_agent.pool.schemas import BatchRequest, EndedRequest, ModelRequest, PublisherTaken, WeightsRequest

log = logging.getLogger(__name__)

AT_ONCE, BYTES_AT_ONCE = 256, 256 * 1024
"""The part of a long batch that is taken before others have their turn."""

STATED = {"repetition_penalty": 1.0, "skip_special_tokens": False}
"""Sampling parameters of a batch that states no other: a model's own would not be in what was recorded."""


class TooMany(Exception):
    """The pool holds as many open requests as it may."""


class Batches:
    """The batches of all runs."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self.runs: dict[str, Run] = {}
        self.calls = Calls()
        self._serials: dict[str, int] = {}
        """Number of runs of that name that were dropped; their requests are not ours."""
        self._journal = (
            Journal(config.journal.resolve(), config.journal_compact_mib) if config.journal else None
        )
        self._saved: dict[RequestId, tuple[int, int, int]] = {}
        """Tokens and characters that the journal has of each of the pool's requests, and its restarts."""
        self._submitting = asyncio.Lock()
        """Held until the journal has been given a batch: who submits it again is told of it only then."""
        self._ended: asyncio.Queue[Request] = asyncio.Queue()
        self.pool: Pool = Pool(config, on_ended=self._ended.put_nowait)
        self._history = PoolHistory(history_file(self._journal.path)) if self._journal else None
        if self._history is not None:
            self.pool.on_engine_changed = self._history.changed
            self.pool.on_moved = self._history.moved
        scaling = scaling_file(self._journal.path) if self._journal else None
        self.scaling = Scaling(
            config.scale, self.pool.state, self.pool.clock, scaling, num_unread=lambda: self.pool.num_unread
        )
        if self._history is not None:
            self.scaling.on_changed = self._history.wanted_changed
        self.is_over = False
        """Nothing more will come from this manager: whoever waits for samples gets what there is."""

    def restore(self) -> None:
        """Read the journal and submit again what waited or ran. Raises StoreError."""
        if self._journal is None:
            return
        self.scaling.restore()
        found = Restore(self._journal, self.pool.clock())
        found.read()
        self.runs, self.calls.left = found.runs, found.calls
        self.pool.faults.add(*found.problems)
        for asked in sorted(found.wanted, key=lambda one: isinstance(one, PublisherTaken)):
            self.pool.handle(_wanted_event(asked))  # what was taken of an earlier publisher stays
        for run in self.runs.values():
            for submission in sorted(run.open.values(), key=_longest_first):
                self._hand_over(run.name, submission, found.made.get((run.name, submission.item.id)))
        counts = (len(self.runs), self.pool.open_requests(), len(found.calls))
        log.info("journal %s: %d runs, %d requests go on, %d calls may", self._journal.path, *counts)

    async def run_jobs(self) -> None:
        """Record what ends, until cancelled."""
        async with asyncio.TaskGroup() as jobs:
            if self._journal is not None:
                jobs.create_task(self._journal.run(), name="write the journal")
                jobs.create_task(self._journal_progress(self._journal), name="journal progress")
            if self._history is not None:
                jobs.create_task(self._history.run(self.pool.state), name="history")
            jobs.create_task(self.scaling.run(), name="scaling")
            jobs.create_task(self._record_ends(), name="record results")

    def end(self) -> None:
        self.is_over = True
        for run in self.runs.values():
            run.changed.set()

    async def submit(self, name: str, batch: BatchRequest) -> tuple[int, int]:
        """Submit a batch durably; return how many requests are new and known. Raises TooMany."""
        async with self._submitting:
            run = self.runs.setdefault(name, Run(name))
            new = {item.id: item for item in batch.requests if item.id not in run.ids}
            if self.pool.open_requests() + len(new) > self._config.max_open_requests:
                raise TooMany
            deadline = self.pool.clock() + (batch.deadline_s or self._config.request_timeout_s)
            submissions = [Submission(item, batch.holds_groups, deadline) for item in new.values()]
            for submission in submissions:
                run.submit(submission)  # before the first await: they are known from now on
            await self._append_submitted(run, submissions)
        await self._commit(())
        for number, submission in enumerate(sorted(submissions, key=_longest_first), start=1):
            if submission.item.id in run.open:
                self._hand_over(name, submission)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return len(new), len(batch.requests) - len(new)

    async def _append_submitted(self, run: Run, submissions: list[Submission]) -> None:
        """Write a whole batch to the journal; a long one leaves time for other jobs."""
        if self._journal is None:
            return
        zero, writes, size = ClockOffsets.of(self.pool.clock()), [], 0
        for submission in submissions:
            writes.append(submission_write(run.name, submission, zero))
            size += len(writes[-1][1][-1])
            if size > BYTES_AT_ONCE:
                size = 0
                await asyncio.sleep(0)
        if self.runs.get(run.name) is run:  # else it was dropped meanwhile
            self._journal.append(writes)

    async def want(self, asked: ModelRequest | WeightsRequest | PublisherTaken) -> None:
        """Let the pool serve a model or weights from now on, also after a restart; stale ones are skipped.

        Likewise with whose weights they may be.
        """
        self.pool.handle(_wanted_event(asked))
        await self._commit(wanted_writes(self.pool.state))

    def begin_call(self, key: Key | None, order: Order) -> None:
        """Submit a call; it continues from the tokens in the journal if it is the same call."""
        made = self.calls.begin(key, order, self.pool.clock()) if key and self._journal is not None else None
        if made is not None:
            self._saved[order.request_id] = (len(made.token_ids), len(made.text), 0)
        self.pool.handle(events.Submitted(order, made))

    def end_call(self, key: Key | None, request_id: RequestId) -> None:
        """End a call whose client has the answer or has left."""
        is_saved = self._saved.pop(request_id, None) is not None
        if key is None or self.is_over or not self.calls.end(key, request_id):
            return
        if self._journal is not None and is_saved:
            self._journal.append([progress_end("call", key)])

    async def acknowledge(self, name: str, cursor: int) -> None:
        run = self.runs[name]
        if cursor > run.acknowledged:
            run.acknowledge(cursor)
            await self._commit(acknowledged_writes(name, cursor))

    async def drop(self, name: str) -> None:
        """End a run: cancel its open requests and forget its samples."""
        run = self.runs.pop(name, None)
        if run is None:
            return
        await self._commit(dropped_writes(name))
        for request_id in list(run.open):
            self.pool.handle(events.Cancelled(self._pool_id(name, request_id)))
        self._serials[name] = self._serials.get(name, 0) + 1
        run.open.clear()
        run.changed.set()

    def _hand_over(self, name: str, submission: Submission, made: PartialResponse | None = None) -> None:
        item = submission.item
        pool_id = self._pool_id(name, item.id)
        if made is not None:
            self._saved[pool_id] = (len(made.token_ids), len(made.text), 0)
        order = Order(
            request_id=pool_id,
            prompt_token_ids=item.prompt_token_ids,
            max_tokens=item.max_tokens,
            params=STATED | item.sampling,
            deadline=submission.deadline,
            group=item.group,
            min_weight_version=item.min_weight_version,
            expected_tokens=item.expected_tokens,
            vocab_size=item.vocab_size,
        )
        self.pool.handle(events.Submitted(order, made))

    async def _record_ends(self) -> None:
        while True:
            ended = [await self._ended.get()]
            while not self._ended.empty():
                ended.append(self._ended.get_nowait())
            found = [(request, await self._sample_of(request)) for request in ended if self._run_of(request)]
            writes: list[Write] = []
            shown: list[tuple[Run, list[EndedRequest]]] = []
            for request, sample in found:
                if (run := self._run_of(request)) is not None:  # not dropped meanwhile
                    shown.append((run, run.end(sample)))
                    writes += end_writes(run.name, sample, shown[-1][1])
            await self._commit(writes)
            for run, samples in shown:
                run.show(samples)
            for request in ended:
                self._saved.pop(request.request_id, None)
            self.pool.handle(events.Forgotten(tuple(request.request_id for request in ended)))

    def _run_of(self, request: Request) -> Run | None:
        """Return the run in which a request of the pool is open."""
        name, request_id, serial = request.request_id
        run = self.runs.get(name)
        is_ours = run is not None and serial == self._serials.get(name, 0) and request_id in run.open
        return run if is_ours else None

    async def _sample_of(self, request: Request) -> EndedRequest:
        """Return the sample of a request; a failed one if the engines' response makes no sample."""
        try:
            return sample_of(request, await text_of(request, self.pool))
        except Exception as error:
            reason = f"its response cannot be recorded: {type(error).__name__}"
            log.exception("%s: %s", request.request_id, reason)
            self.pool.faults.add(f"{request.request_id}: {reason}")
            return failed_sample(request.request_id.name, request.order.group, reason)

    async def _journal_progress(self, journal: Journal) -> None:
        """Write the tokens of unfinished responses to the journal every `journal_interval_s`."""
        while True:
            await asyncio.sleep(self._config.journal_interval_s)
            journal.append(self._new_progress())

    def _open(self) -> Iterator[tuple[Run, str, Request]]:
        """Yield the open requests whose tokens a restarted manager could use."""
        for run in self.runs.values():
            for request_id in run.open:
                request = self.pool.state.requests.get(self._pool_id(run.name, request_id))
                if request is not None and request.token_ids and can_continue(request.order.params):
                    yield run, request_id, request

    def _new_progress(self) -> Iterator[Write]:
        for run, request_id, request in self._open():
            if (starts := self._unsaved(request)) is not None:
                yield from progress_writes("request", (run.name, request_id), request, *starts)
        zero = ClockOffsets.of(self.pool.clock())
        for key, request in self.calls.growing(self.pool.state):
            if (starts := self._unsaved(request)) is not None:
                call = CallIdentity(self.calls.digest(request.order), zero.stamp(request.order.deadline))
                yield from progress_writes("call", key, request, *starts, call)

    def _unsaved(self, request: Request) -> tuple[int, int] | None:
        """Return the first token and character that the journal lacks; None if it lacks nothing."""
        start, text_start, restarts = self._saved.get(request.request_id, (0, 0, 0))
        if restarts != request.restarts:
            start = text_start = 0
        if len(request.token_ids) <= start:
            return None
        size = sum(map(len, request.texts))
        self._saved[request.request_id] = (len(request.token_ids), size, request.restarts)
        return start, text_start

    async def _commit(self, writes: Iterable[Write]) -> None:
        if self._journal is not None:
            await self._journal.commit(writes)

    def _pool_id(self, name: str, request_id: str) -> RequestId:
        return RequestId(name, request_id, self._serials.get(name, 0))


def weights_of(asked: WeightsRequest) -> Weights:
    """Return a published version as the scheduler knows it."""
    useful_from = asked.weight_version if asked.useful_from is None else asked.useful_from
    return Weights(**asked.model_dump() | {"useful_from": useful_from})


def _wanted_event(asked: ModelRequest | WeightsRequest | PublisherTaken) -> events.Event:
    if isinstance(asked, PublisherTaken):
        return events.PlaceTaken(asked.publisher)
    if isinstance(asked, WeightsRequest):
        return events.WeightsWanted(weights_of(asked))
    return events.ModelWanted(asked.model, asked.weight_version, asked.is_rollback)


def _longest_first(submission: Submission) -> int:
    """Return the sort key by which the longest response begins first, so that a batch ends soonest."""
    return -(submission.item.expected_tokens or 0)
