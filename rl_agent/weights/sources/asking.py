"""Asks several sources the same question, one after the other, until one answers.

Each is asked in a thread of its own, which is left behind if nothing ends it.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

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
ANSWER_S = 10.0
"""A source that takes longer gives way to the next."""


def first_answer(
    sources: Sequence[Source],
    question: Question[T],
    deadline: Deadline,
    stop: threading.Event,
    on_failure: Callable[[Source, SourceFailure], None],
) -> T | None:
    """Return the first answer; None if no source gives one in time."""
    for source in sources:
        if stop.is_set() or deadline.is_over:
            return None
        try:
            return _answer_of(source, question, deadline.sooner(ANSWER_S), stop)
        except SourceFailure as failure:
            on_failure(source, failure)
    return None


def _answer_of(source: Source, question: Question[T], deadline: Deadline, stop: threading.Event) -> T:
    """Raises SourceFailure."""
    connection, answer = GuardedConnection(source), Future[T]()

    def ask() -> None:
        try:
            with failures_of():
                try:
                    connection.open(deadline)
                    content = question(connection, deadline)
                finally:
                    connection.close()
        except BaseException as error:
            answer.set_exception(error)
        else:
            answer.set_result(content)

    threading.Thread(target=ask, name=f"ask-{source}", daemon=True).start()
    while not (answer.done() or stop.is_set() or deadline.is_over):
        wait([answer], STOP_POLL_S)
    grace = Deadline.after(GRACE_S)
    while not answer.done():
        if grace.is_over:
            raise stuck()
        connection.interrupt()
        wait([answer], min(GRACE_S, 0.05))
    return answer.result()
