"""Runs on top of the pool: batches in, samples out, and a journal so that a restart loses no progress."""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from rl_agent.config import PoolConfig
from rl_agent.errors import StoreError
from rl_agent.pool.runtime.calls import Calls, Key, call_record, ended_call_record
from rl_agent.pool.runtime.detokenize import text_of
from rl_agent.pool.runtime.journal import Journal, line_of, rewrite_journal
from rl_agent.pool.runtime.replay import Replay
from rl_agent.pool.runtime.results import (
    Run,
    Submission,
    Zero,
    copy_of,
    ended_record,
    failed_sample,
    made_of,
    progress_record,
    records_of,
    sample_of,
    submitted_record,
)
from rl_agent.pool.runtime.service import Pool
from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.migration import can_continue
from rl_agent.pool.scheduler.records import Made, Order, Request, RequestId, Weights
from rl_agent.pool.scheduler.state import PoolState
from rl_agent.pool.schemas import BatchRequest, ModelRequest, Sample, WeightsRequest

log = logging.getLogger(__name__)

AT_ONCE, BYTES_AT_ONCE = 256, 256 * 1024
"""Of a long batch, before others have their turn."""

STATED = {"repetition_penalty": 1.0, "skip_special_tokens": False}
"""Sampling parameters of a batch that states no other: a model's own would not be in what was recorded."""


class TooMany(Exception):
    """The pool holds as many open requests as it may."""


class Batches:
    """All runs. `pool` must be set before anything is submitted."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._path: Path | None = config.journal.resolve() if config.journal else None
        self.runs: dict[str, Run] = {}
        self.calls = Calls()
        self._serials: dict[str, int] = {}
        """How often a run of that name was dropped: what an earlier one still has in the pool is not ours."""
        self._journal = Journal(self._path, config.journal_compact_mib * 2**20) if self._path else None
        self._saved: dict[RequestId, tuple[int, int, int]] = {}
        """What the journal has of each of the pool's requests: tokens, characters; after so many restarts."""
        self._submitting = asyncio.Lock()
        """Held until the journal has been given a batch: who submits it again is told of it only then."""
        self._ending = asyncio.Lock()
        """Held while the journal knows of ends that the runs do not."""
        self._ended: asyncio.Queue[Request] = asyncio.Queue()
        self.pool: Pool = Pool(config, on_ended=self._ended.put_nowait)
        self.is_over = False
        """Nothing more will come from this manager: whoever waits for samples gets what there is."""

    def restore(self) -> None:
        """Take up the journal: what waited or ran is submitted again. Raises StoreError."""
        if self._path is None:
            return
        replay = Replay(self.runs, self.calls.left, self._want, self._zero())
        try:
            replay.read(self._path)
            rewrite_journal(self._path, self._all_records())
        except OSError as error:
            raise StoreError(f"the journal {self._path} cannot be used: {error.strerror}") from error
        self.pool.faults.add(*replay.set_aside)
        for run in self.runs.values():
            for submission in sorted(run.open.values(), key=_longest_first):
                self._hand_over(run.name, submission, run.made.get(submission.item.id))
            run.made.clear()
        open_count = sum(len(run.open) for run in self.runs.values())
        found = (self._path, len(self.runs), open_count, len(self.calls.left))
        log.info("journal %s: %d runs, %d requests go on, %d calls may", *found)

    async def run_jobs(self) -> None:
        """Record what ends, until cancelled."""
        async with asyncio.TaskGroup() as jobs:
            if self._journal is not None:
                jobs.create_task(self._journal.run(), name="write the journal")
                jobs.create_task(self._journal_progress(self._journal), name="journal progress")
            jobs.create_task(self._record_ends(), name="record results")

    def end(self) -> None:
        self.is_over = True
        for run in self.runs.values():
            run.changed.set()

    async def submit(self, name: str, batch: BatchRequest) -> tuple[int, int]:
        """(accepted, known before); accepted ones are durable. Raises TooMany."""
        async with self._submitting:
            run = self.runs.setdefault(name, Run(name))
            new = {item.id: item for item in batch.requests if item.id not in run.ids}
            if self.pool.open_requests() + len(new) > self._config.max_open_requests:
                raise TooMany
            deadline = self.pool.clock() + (batch.deadline_s or self._config.request_timeout_s)
            submissions = [Submission(item, batch.holds_groups, deadline) for item in new.values()]
            for submission in submissions:
                run.submit(submission)  # before the first await, or they would be forgotten by `compact`
            await self._append_submitted(run, submissions)
        await self._commit(())
        for number, submission in enumerate(sorted(submissions, key=_longest_first), start=1):
            if submission.item.id in run.open:
                self._hand_over(name, submission)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return len(new), len(batch.requests) - len(new)

    async def _append_submitted(self, run: Run, submissions: list[Submission]) -> None:
        """To the journal, all of them at once; making lines of a long batch leaves time for others."""
        if self._journal is None:
            return
        zero, lines, made = self._zero(), [], 0
        for submission in submissions:
            lines.append(line_of(submitted_record(run.name, submission, zero)))
            made += len(lines[-1])
            if made > BYTES_AT_ONCE:
                made = 0
                await asyncio.sleep(0)
        if self.runs.get(run.name) is run:  # else it was dropped meanwhile
            self._journal.append_lines(lines)

    async def want(self, asked: ModelRequest | WeightsRequest) -> None:
        """From now on the pool serves this, also after a restart; what is stale is skipped."""
        self._want(asked)
        await self._commit(_wanted_records(self.pool.state))

    def _want(self, asked: ModelRequest | WeightsRequest) -> None:
        self.pool.tell(_wanted_event(asked))

    def begin_call(self, key: Key | None, order: Order) -> None:
        """Submit it; it goes on from what the journal has of it, if that is this very call."""
        made = self.calls.begin(key, order, self.pool.clock()) if key and self._journal is not None else None
        if made is not None:
            self._saved[order.request_id] = (len(made.token_ids), len(made.text), 0)
        self.pool.submit(order, made)

    def end_call(self, key: Key | None, request_id: RequestId) -> None:
        """Its client has the answer, or has left."""
        is_saved = self._saved.pop(request_id, None) is not None
        if key is None or self.is_over or not self.calls.end(key, request_id):
            return
        if self._journal is not None and is_saved:
            self._journal.append([ended_call_record(key)])

    async def acknowledge(self, name: str, cursor: int) -> None:
        run = self.runs[name]
        if cursor > run.acknowledged:
            run.acknowledge(cursor)
            await self._commit([{"kind": "acknowledged", "run": name, "cursor": cursor}])

    async def drop(self, name: str) -> None:
        """End a run: what is open is cancelled, what ended is forgotten."""
        run = self.runs.pop(name, None)
        if run is None:
            return
        await self._commit([{"kind": "dropped", "run": name}])
        for request_id in list(run.open):
            self.pool.cancel(self._pool_id(name, request_id))
        self._serials[name] = self._serials.get(name, 0) + 1
        run.open.clear()
        run.changed.set()

    def _hand_over(self, name: str, submission: Submission, made: Made | None = None) -> None:
        item = submission.item
        pool_id = self._pool_id(name, item.id)
        if made is not None:
            self._saved[pool_id] = (len(made.token_ids), len(made.text), 0)
        self.pool.submit(
            Order(
                request_id=pool_id,
                prompt_token_ids=item.prompt_token_ids,
                max_tokens=item.max_tokens,
                params=STATED | item.sampling,
                deadline=submission.deadline,
                group=item.group,
                min_weight_version=item.min_weight_version,
                expected_tokens=item.expected_tokens,
                vocab_size=item.vocab_size,
            ),
            made,
        )

    async def _record_ends(self) -> None:
        while True:
            ended = [await self._ended.get()]
            while not self._ended.empty():
                ended.append(self._ended.get_nowait())
            found = []
            for request in ended:
                name, request_id, serial = request.request_id
                is_ours = serial == self._serials.get(name, 0) and name in self.runs
                if is_ours and request_id in self.runs[name].open:
                    found.append((name, await self._sample_of(request)))
            async with self._ending:
                await self._commit(ended_record(name, sample) for name, sample in found)
                for name, sample in found:
                    if name in self.runs and sample.id in self.runs[name].open:
                        self.runs[name].end(sample)
            for request in ended:
                self._saved.pop(request.request_id, None)
            self.pool.tell(events.Forgotten(tuple(request.request_id for request in ended)))

    async def _sample_of(self, request: Request) -> Sample:
        """A failure where what the engines gave makes no sample: that request's alone."""
        try:
            return sample_of(request, await text_of(request, self.pool))
        except Exception as error:
            words = f"its response cannot be recorded: {type(error).__name__}"
            log.exception("%s: %s", request.request_id, words)
            self.pool.faults.add(f"{request.request_id}: {words}")
            return failed_sample(request.request_id.name, request.order.group, words)

    async def _journal_progress(self, journal: Journal) -> None:
        """Half-generated responses, every `journal_interval_s`; a death loses what came since."""
        while True:
            await asyncio.sleep(self._config.journal_interval_s)
            journal.append(self._new_progress())
            if journal.is_due:
                async with self._ending:
                    journal.compact(self._all_records())

    def _open(self) -> Iterator[tuple[Run, str, Request]]:
        """Those of which a restarted manager could use the tokens."""
        for run in self.runs.values():
            for request_id in run.open:
                request = self.pool.state.requests.get(self._pool_id(run.name, request_id))
                if request is not None and request.token_ids and can_continue(request.order.params):
                    yield run, request_id, request

    def _new_progress(self) -> Iterator[dict[str, Any]]:
        for run, request_id, request in self._open():
            if (grown := self._grown(request)) is not None:
                yield progress_record(run.name, request_id, *grown)
        zero = self._zero()
        for key, request in self.calls.growing(self.pool.state):
            if (grown := self._grown(request)) is not None:
                made, *starts = grown
                yield call_record(key, self.calls.call_of(request, made), zero, *starts)

    def _grown(self, request: Request) -> tuple[Made, int, int] | None:
        """What the journal has not of it yet, from which token and which character on."""
        start, text_start, restarts = self._saved.get(request.request_id, (0, 0, 0))
        if restarts != request.restarts:
            start = text_start = 0
        if len(request.token_ids) <= start:
            return None
        made = made_of(request, start, text_start)
        size = (len(request.token_ids), text_start + len(made.text))
        self._saved[request.request_id] = (*size, request.restarts)
        return made, start, text_start

    def _all_records(self) -> Iterator[dict[str, Any]]:
        """What the journal must hold now; read in another thread."""
        runs, zero = copy_of(self.runs), self._zero()
        for run, request_id, request in self._open():
            runs[run.name].made[request_id] = made_of(request)
        calls = self.calls.records(self.pool.state, self.pool.clock(), zero)
        return chain(_wanted_records(self.pool.state), records_of(runs, zero), calls)

    def _zero(self) -> Zero:
        """Where other clocks began, by the pool's, as they stand now."""
        return Zero.of(self.pool.clock())

    async def _commit(self, records: Iterable[dict[str, Any]]) -> None:
        if self._journal is not None:
            await self._journal.commit(records)

    def _pool_id(self, name: str, request_id: str) -> RequestId:
        return RequestId(name, request_id, self._serials.get(name, 0))


def weights_of(asked: WeightsRequest) -> Weights:
    useful_from = asked.weight_version if asked.useful_from is None else asked.useful_from
    return Weights(
        asked.weight_version,
        asked.digest,
        asked.sources,
        asked.transfer_token,
        useful_from,
        asked.finish_within_s,
        asked.delta_digest,
    )


def _wanted_event(asked: ModelRequest | WeightsRequest) -> events.Event:
    if isinstance(asked, WeightsRequest):
        return events.WeightsWanted(weights_of(asked))
    return events.ModelWanted(asked.model, asked.weight_version, asked.is_rollback)


def _wanted_records(state: PoolState) -> list[dict[str, Any]]:
    """What a restarted manager has to know before the runs; it holds whatever the settings say."""
    if not state.model:
        return []
    model = ModelRequest(model=state.model, weight_version=state.model_version, is_rollback=True)
    records = [{"kind": "model", "asked": model.model_dump()}]
    if (weights := state.weights) is not None:
        asked = WeightsRequest(
            weight_version=weights.weight_version,
            digest=weights.digest,
            delta_digest=weights.delta_digest,
            sources=weights.sources,
            transfer_token=weights.transfer_token,
            useful_from=weights.useful_from,
            finish_within_s=weights.finish_within_s,
        )
        records.append({"kind": "weights", "asked": asked.model_dump()})
    return records


def _longest_first(submission: Submission) -> int:
    """Where lengths are known, a batch ends soonest if what takes longest begins first."""
    return -(submission.item.expected_tokens or 0)
