"""What ended, kept until its consumer has it: for each run, its samples in the order they ended. Pure.

A consumer asks for what comes after the last cursor it has taken care of; asking so is its receipt for
everything before, which is then forgotten. So a consumer that remembers its cursor sees each sample exactly
once, however often it reconnects. Cursors follow from the order of the journal's records alone.

Records, which `replay` reads: submitted {run, request, holds_group, deadline, boot} · progress {run, id,
start, tokens, …} · ended {run, sample} · acknowledged {run, cursor} · dropped {run}; a rewritten
journal begins with run {…} and sample {…}.
Each may be applied again on top of what follows from it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rl_agent.cluster.shared_fs.processes import boot_id
from rl_agent.pool.scheduler.records import Made, Request
from rl_agent.pool.schemas import BatchItem, Sample, SpanRecord


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as it was submitted; `deadline` by the pool's own clock, which nobody sets."""

    item: BatchItem
    holds_group: bool
    deadline: float


@dataclass(slots=True)
class Run:
    """One consumer's requests."""

    name: str
    ids: set[str] = field(default_factory=set)
    """Every id ever submitted."""
    open: dict[str, Submission] = field(default_factory=dict)
    made: dict[str, Made] = field(default_factory=dict)
    """What the journal has of open responses."""
    held: dict[str, dict[str, Sample]] = field(default_factory=dict)
    """Ended siblings, by group and id, that wait for the rest of their group."""
    group_open: dict[str, int] = field(default_factory=dict)
    samples: deque[Sample] = field(default_factory=deque)
    """Not acknowledged yet."""
    next_cursor: int = 1
    acknowledged: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def submit(self, submission: Submission) -> None:
        item = submission.item
        self.ids.add(item.id)
        self.open[item.id] = submission
        if submission.holds_group and item.group is not None:
            self.group_open[item.group] = self.group_open.get(item.group, 0) + 1

    def end(self, sample: Sample) -> None:
        """A request ended: its sample is there now, or once its whole group is.

        Raises KeyError if it is not open.
        """
        submission = self.open.pop(sample.id)
        self.made.pop(sample.id, None)
        group = submission.item.group
        if not submission.holds_group or group is None:
            self._add(sample)
            return
        self.held.setdefault(group, {})[sample.id] = sample
        self.group_open[group] -= 1
        if self.group_open[group] == 0:
            del self.group_open[group]
            for one in self.held.pop(group).values():
                self._add(one)

    def _add(self, sample: Sample) -> None:
        self.samples.append(sample.model_copy(update={"cursor": self.next_cursor}))
        self.next_cursor += 1
        self.changed.set()

    def acknowledge(self, cursor: int) -> None:
        """Forget everything up to `cursor`."""
        while self.samples and self.samples[0].cursor <= cursor:
            self.samples.popleft()
        self.acknowledged = max(self.acknowledged, min(cursor, self.next_cursor - 1))

    @property
    def is_finished(self) -> bool:
        """Nothing more will come unless more is submitted."""
        return not self.open


@dataclass(frozen=True, slots=True)
class Zero:
    """Where other clocks began, by the pool's: its own begins anew with a process."""

    epoch: float
    """The wall clock, which outlives the host's restart, and which anybody sets."""
    boot: float
    """The clock of `boot_id`, which outlives a process, and which nobody sets."""
    boot_id: str

    @classmethod
    def of(cls, now: float) -> "Zero":
        return cls(now - time.time(), now - time.monotonic(), boot_id())

    def fields(self, deadline: float) -> dict[str, Any]:
        """A deadline of a record, by both clocks."""
        return {"deadline": deadline - self.epoch, "boot": (self.boot_id, deadline - self.boot)}


def submitted_record(run: str, submission: Submission, zero: Zero) -> dict[str, Any]:
    """With its deadline by two clocks that outlive the manager."""
    return {
        "kind": "submitted",
        "run": run,
        "request": submission.item.model_dump(),
        "holds_group": submission.holds_group,
    } | zero.fields(submission.deadline)


def ended_record(run: str, sample: Sample) -> dict[str, Any]:
    return {"kind": "ended", "run": run, "sample": sample.model_dump()}


def made_of(request: Request, start: int = 0, text_start: int = 0) -> Made:
    """Its tokens from `start` on, and its text from `text_start` on."""
    text = "".join(request.texts)[text_start:]
    return Made(
        request.token_ids[start:], request.logprobs[start:], text, tuple(request.spans), request.moves
    )


def progress_record(
    run: str, request_id: str, made: Made, start: int = 0, text_start: int = 0
) -> dict[str, Any]:
    return {
        "kind": "progress",
        "run": run,
        "id": request_id,
        "start": start,
        "token_ids": list(made.token_ids),
        "logprobs": list(made.logprobs),
        "text_start": text_start,
        "text": made.text,
        "spans": [(span.start, span.engine_id, span.weight_version) for span in made.spans],
        "moves": made.moves,
    }


def copy_of(runs: dict[str, Run]) -> dict[str, Run]:
    """For another thread to read: records and samples themselves never change."""
    return {
        name: replace(
            run,
            ids=set(run.ids),
            open=dict(run.open),
            made=dict(run.made),
            held={group: dict(found) for group, found in run.held.items()},
            group_open=dict(run.group_open),
            samples=deque(run.samples),
        )
        for name, run in runs.items()
    }


def records_of(runs: dict[str, Run], zero: Zero) -> Iterator[dict[str, Any]]:
    """The shortest journal that leads to these runs."""
    for run in runs.values():
        yield {
            "kind": "run",
            "run": run.name,
            "ids": sorted(run.ids),
            "next_cursor": run.next_cursor,
            "acknowledged": run.acknowledged,
        }
        for sample in run.samples:
            yield {"kind": "sample", "run": run.name, "sample": sample.model_dump()}
        held = [(group, sample) for group, found in run.held.items() for sample in found.values()]
        for group, sample in held:
            item = BatchItem(id=sample.id, prompt_token_ids=(0,), max_tokens=1, group=group)
            yield submitted_record(run.name, Submission(item, True, zero.epoch), zero)
        for submission in run.open.values():
            yield submitted_record(run.name, submission, zero)
        for request_id, made in run.made.items():
            yield progress_record(run.name, request_id, made)
        for _, sample in held:
            yield ended_record(run.name, sample)


def sample_of(request: Request, text: str) -> Sample:
    """Its cursor comes with its place among the others."""
    return Sample(
        cursor=0,
        id=request.request_id.name,
        group=request.order.group,
        is_completed=not request.failure,
        failure=request.failure,
        token_ids=tuple(request.token_ids),
        logprobs=tuple(request.logprobs),
        text=text,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        spans=spans_of(request),
        moves=request.moves,
        duration_s=request.ended_at - request.submitted_at,
    )


def failed_sample(request_id: str, group: str | None, words: str) -> Sample:
    """The end of a request of which nothing else can be said."""
    return Sample(
        cursor=0,
        id=request_id,
        group=group,
        is_completed=False,
        failure=words,
        token_ids=(),
        logprobs=(),
        text="",
        finish_reason="",
        stop_reason=None,
        spans=(),
        moves=0,
        duration_s=0.0,
    )


def spans_of(request: Request) -> tuple[SpanRecord, ...]:
    return tuple(
        SpanRecord(start=span.start, engine_id=span.engine_id, weight_version=span.weight_version)
        for span in request.spans
    )
