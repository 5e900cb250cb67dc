"""The samples of a run until its consumer has them, in the order in which their groups ended. Pure.

A consumer asks for what comes after the last cursor it has taken care of; asking so is its receipt for
everything before, which is then forgotten. So a consumer that remembers its cursor sees each sample exactly
once, however often it reconnects.

    submit ─► open ─► end, once all of its group have ended ─► the journal has it ─► show ─► acknowledge
"""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field

from rl_agent.pool.scheduler.records import Request
from rl_agent.pool.schemas import EndedRequest, RunRequest


@dataclass(slots=True)
class Run:
    """The requests of one consumer."""

    name: str
    serial: int
    """Another run of the same name, which was dropped, had another one."""
    ids: set[str] = field(default_factory=set)
    """Every id ever submitted."""
    open: dict[str, RunRequest] = field(default_factory=dict)
    open_in: Counter[str] = field(default_factory=Counter)
    """Number of open requests by group."""
    held: dict[str, list[EndedRequest]] = field(default_factory=dict)
    """Ended siblings, by group, that wait for the rest of it."""
    cursor: int = 0
    """The cursor of the newest sample; one that was not shown yet has it, too."""
    acknowledged: int = 0
    samples: deque[EndedRequest] = field(default_factory=deque)
    """The samples that were shown and not acknowledged yet."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def submit(self, item: RunRequest) -> None:
        """Add an open request."""
        self.ids.add(item.id)
        self.open[item.id] = item
        if item.group is not None:
            self.open_in[item.group] += 1

    def end(self, sample: EndedRequest) -> list[EndedRequest]:
        """End a request; return the samples of its group if they are complete now.

        Raises KeyError if the request is not open.
        """
        del self.open[sample.id]
        complete = [sample]
        if sample.group is not None:
            self.open_in[sample.group] -= 1
            self.held.setdefault(sample.group, []).append(sample)
            if self.open_in[sample.group]:
                return []
            del self.open_in[sample.group]
            complete = self.held.pop(sample.group)
        first, self.cursor = self.cursor + 1, self.cursor + len(complete)
        return [sibling.model_copy(update={"cursor": first + n}) for n, sibling in enumerate(complete)]

    def show(self, samples: list[EndedRequest]) -> None:
        """Let the consumer see samples, in the order of their cursors."""
        self.samples += samples
        self.changed.set()

    @property
    def newest(self) -> int:
        """Return the cursor of the newest sample that was shown."""
        return self.acknowledged + len(self.samples)

    def acknowledge(self, cursor: int) -> None:
        """Forget everything up to `cursor`."""
        while self.acknowledged < cursor and self.samples:
            self.samples.popleft()
            self.acknowledged += 1

    @property
    def is_finished(self) -> bool:
        """Return whether no sample will come unless more is submitted."""
        return not self.open and self.newest == self.cursor


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
