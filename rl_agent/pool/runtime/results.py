"""Results until their consumer has them: for each run, its samples in the order they ended. Pure.

A consumer asks for what comes after the last cursor it has taken care of; asking so is its receipt for
everything before, which is then forgotten. So a consumer that remembers its cursor sees each sample exactly
once, however often it reconnects.

    submit ─► open ─► end: gets its cursor ─► the journal has it ─► show: consumers may see it ─► acknowledge
                       └─ with `holds_groups`, once all of its group have ended
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from rl_agent.cluster.shared_fs.processes import boot_id
from rl_agent.pool.scheduler.records import Request
from rl_agent.pool.schemas import BatchItem, EndedRequest


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as it was submitted; its deadline is by the pool's own clock, which nobody sets."""

    item: BatchItem
    holds_group: bool
    deadline: float


@dataclass(slots=True)
class Run:
    """The requests of one consumer."""

    name: str
    ids: set[str] = field(default_factory=set)
    """Every id ever submitted."""
    open: dict[str, Submission] = field(default_factory=dict)
    held: dict[str, dict[str, EndedRequest]] = field(default_factory=dict)
    """Ended siblings, by group and id, that wait for the rest of their group."""
    group_open: dict[str, int] = field(default_factory=dict)
    samples: deque[EndedRequest] = field(default_factory=deque)
    """The samples that are not acknowledged yet."""
    next_cursor: int = 1
    newest: int = 0
    """Cursor of the newest sample that was shown."""
    acknowledged: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def submit(self, submission: Submission) -> None:
        """Add an open request."""
        item = submission.item
        self.ids.add(item.id)
        self.open[item.id] = submission
        if submission.holds_group and item.group is not None:
            self.group_open[item.group] = self.group_open.get(item.group, 0) + 1

    def end(self, sample: EndedRequest) -> list[EndedRequest]:
        """End a request; return the samples that can be shown now: its own, or those of its whole group.

        Raises KeyError if the request is not open.
        """
        submission = self.open.pop(sample.id)
        group, complete = submission.item.group, [sample]
        if submission.holds_group and group is not None:
            self.held.setdefault(group, {})[sample.id] = sample
            self.group_open[group] -= 1
            if self.group_open[group]:
                return []
            del self.group_open[group]
            complete = list(self.held.pop(group).values())
        first, self.next_cursor = self.next_cursor, self.next_cursor + len(complete)
        return [one.model_copy(update={"cursor": first + n}) for n, one in enumerate(complete)]

    def show(self, samples: list[EndedRequest]) -> None:
        """Let consumers see samples, in the order of their cursors."""
        self.samples += samples
        self.newest = samples[-1].cursor if samples else self.newest
        self.changed.set()

    def acknowledge(self, cursor: int) -> None:
        """Forget everything up to `cursor`."""
        while self.samples and self.samples[0].cursor <= cursor:
            self.samples.popleft()
        self.acknowledged = max(self.acknowledged, min(cursor, self.newest))

    @property
    def is_finished(self) -> bool:
        """Return whether no sample will come unless more is submitted."""
        return not self.open and self.newest == self.next_cursor - 1


Finite = Annotated[float, Field(allow_inf_nan=False)]
Stamp = tuple[Finite, str, Finite]
"""A deadline in the journal: by the wall clock; a boot's id, and the deadline by the clock of that boot."""


@dataclass(frozen=True, slots=True)
class ClockOffsets:
    """The beginnings of other clocks by the pool's clock, which begins anew with each process."""

    epoch: float
    """The wall clock, which outlives the host's restart, and which anybody sets."""
    boot: float
    """The clock of `boot_id`, which outlives a process, and which nobody sets."""
    boot_id: str

    @classmethod
    def of(cls, now: float) -> "ClockOffsets":
        """Read the clocks."""
        return cls(now - time.time(), now - time.monotonic(), boot_id())

    def stamp(self, deadline: float) -> Stamp:
        """Return a deadline by the two clocks that continue after the manager's end."""
        return deadline - self.epoch, self.boot_id, deadline - self.boot

    def deadline(self, stamp: Stamp) -> float:
        """Return a stamped deadline by the pool's clock; by the wall clock only if the host was restarted."""
        by_wall, boot, by_boot = stamp
        return by_boot + self.boot if boot and boot == self.boot_id else by_wall + self.epoch


def sample_of(request: Request, text: str) -> EndedRequest:
    """Return the sample of a request that ended; its cursor comes with its place among the others."""
    return EndedRequest(
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
        spans=tuple(request.spans),
        moves=request.moves,
        duration_s=request.ended_at - request.submitted_at,
    )


def failed_sample(request_id: str, group: str | None, reason: str) -> EndedRequest:
    """Return the end of a request of which nothing else is known."""
    return EndedRequest(cursor=0, id=request_id, group=group, is_completed=False, failure=reason)
