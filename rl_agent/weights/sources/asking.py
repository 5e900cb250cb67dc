"""Asks several sources the same question, in their order, until one answers.

    one is asked ─► answers: that is it
                ├─► fails: the next is asked
                └─► was reached, and takes its time: the next is asked beside it

Each is asked in a thread of its own, which is left behind if nothing ends it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.sources.source import (
    GRACE_S,
    STOP_POLL_S,
    GuardedConnection,
    Source,
    SourceFailure,
    failures_of,
    stuck,
)

T = TypeVar("T")
Question = Callable[[GuardedConnection, Deadline], T]
PATIENCE_S = 2.0
"""A source that was reached has so long before another is asked beside it."""


@dataclass(slots=True)
class _PendingAnswer(Generic[T]):
    source: Source
    connection: GuardedConnection
    deadline: Deadline
    answer: Future[T] = field(default_factory=Future)
    reached_at: float | None = None

    @property
    def takes_its_time(self) -> bool:
        return self.reached_at is not None and time.monotonic() > self.reached_at + PATIENCE_S

    def run(self, question: Question[T]) -> None:
        try:
            with failures_of():
                try:
                    self.connection.open(self.deadline)
                    self.reached_at = time.monotonic()
                    answer = question(self.connection, self.deadline)
                finally:
                    self.connection.close()
        except BaseException as error:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(answer)


def first_answer(
    sources: Sequence[Source],
    question: Question[T],
    deadline: Deadline,
    stop: threading.Event,
    on_failure: Callable[[Source, SourceFailure], None],
    *,
    within_s: float,
) -> T | None:
    """Return the first answer; None if no source gives one in time. `within_s`: the time of each source."""
    left, attempts = deque(sources), list[_PendingAnswer[T]]()
    while True:
        for attempt in [attempt for attempt in attempts if attempt.answer.done()]:
            attempts.remove(attempt)
            try:
                answer = attempt.answer.result()
            except SourceFailure as failure:
                on_failure(attempt.source, failure)
            else:
                _end(attempts)
                return answer
        is_over = stop.is_set() or deadline.is_over
        overdue = attempts if is_over else [attempt for attempt in attempts if attempt.deadline.is_over]
        for attempt in _end(overdue, GRACE_S):
            attempts.remove(attempt)
            on_failure(attempt.source, stuck())
        if overdue:
            continue
        if is_over or not (left or attempts):
            return None
        if left and all(attempt.takes_its_time for attempt in attempts):
            attempts.append(_ask(left.popleft(), question, deadline.sooner(within_s)))
        elif attempts:
            wait([attempt.answer for attempt in attempts], STOP_POLL_S, FIRST_COMPLETED)


def _ask(source: Source, question: Question[T], deadline: Deadline) -> _PendingAnswer[T]:
    attempt = _PendingAnswer[T](source, GuardedConnection(source), deadline)
    threading.Thread(target=attempt.run, args=(question,), name=f"ask-{source}", daemon=True).start()
    return attempt


def _end(attempts: Sequence[_PendingAnswer[T]], grace_s: float = 0.0) -> list[_PendingAnswer[T]]:
    """Interrupt them, and return those that have not ended within the grace."""
    grace = Deadline.after(grace_s)
    while True:
        for attempt in attempts:
            attempt.connection.interrupt()
        others = wait([attempt.answer for attempt in attempts], min(grace_s, 0.05)).not_done
        if not others or grace.is_over:
            return [attempt for attempt in attempts if attempt.answer in others]
