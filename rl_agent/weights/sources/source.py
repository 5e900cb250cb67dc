"""Defines a source of pieces, and keeps its faults from everything else.

    any source ─► `GuardedConnection`: every answer is typed, every exception becomes a `SourceFailure`

Nothing outside of this module calls a source. What it cannot hold back is a call that does not return; so
those who call one do so in a thread of its own, and go on without it (`asking`, `fetch`).
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.format.manifest import Manifest
from rl_agent.weights.format.pieces import Bits

GRACE_S = 1.0
"""The time for an interrupted source to end what it does; then its thread is left behind."""
STOP_POLL_S = 0.2
"""Seconds until something that waits notices that it is to stop."""
_REASON_LENGTH = 300


class SourceFailure(WeightsError):
    """A source could not give what it was asked for, whatever it did instead."""

    is_out_of_reach = False
    """Nobody has answered there, be it to say no."""
    is_stuck = False
    """It does not even end when it is interrupted."""


class SourceConnection(Protocol):
    @property
    def is_cut_at_once(self) -> bool:
        """Tell whether `read_piece`, interrupted, returns at once whatever it waits for.

        If so it may be given the place where the bytes belong as its `target`, else never.
        """

    def open(self, deadline: Deadline) -> None: ...

    def interrupt(self) -> None:
        """End whatever another thread waits for on this connection, now and later. Does not wait."""

    def close(self) -> None: ...

    def manifest(self, weight_version: int, digest: str | None, deadline: Deadline) -> Manifest: ...

    def recommend(
        self, weight_version: int, blob: str, bits: Bits, limit: int, wait_s: float, deadline: Deadline
    ) -> list[int]: ...

    def read_piece(
        self, weight_version: int, blob: str, index: int, start: int, target: memoryview, deadline: Deadline
    ) -> None: ...


class Source(Protocol):
    """Something that pieces can be read from; `str` of it names it in messages."""

    def connection(self) -> SourceConnection: ...


class GuardedConnection:
    """A connection of a source that may do anything. Raises SourceFailure, and nothing else."""

    def __init__(self, source: Source) -> None:
        self._connection = source.connection()

    @property
    def is_cut_at_once(self) -> bool:
        return self._connection.is_cut_at_once

    def open(self, deadline: Deadline) -> None:
        with failures_of(opens=True):
            self._connection.open(deadline)

    def interrupt(self) -> None:
        with suppress(Exception):
            self._connection.interrupt()

    def close(self) -> None:
        with suppress(Exception):
            self._connection.close()

    def manifest(self, weight_version: int, digest: str | None, deadline: Deadline) -> Manifest:
        with failures_of():
            return self._connection.manifest(weight_version, digest, deadline)

    def recommend(
        self, weight_version: int, blob: str, bits: Bits, limit: int, wait_s: float, deadline: Deadline
    ) -> list[int]:
        """Return at most `limit` of the pieces that are wanted."""
        with failures_of():
            proposed = self._connection.recommend(weight_version, blob, bits, limit, wait_s, deadline)
            if not all(0 <= index < len(bits) and bits[index] for index in proposed):
                raise WeightsError("proposes pieces that do not exist or were not requested")
            return proposed[:limit]

    def read_piece(
        self, weight_version: int, blob: str, index: int, start: int, target: memoryview, deadline: Deadline
    ) -> None:
        with failures_of():
            self._connection.read_piece(weight_version, blob, index, start, target, deadline)


@contextmanager
def failures_of(*, opens: bool = False) -> Iterator[None]:
    """Turn whatever is raised within into a SourceFailure."""
    try:
        yield
    except SourceFailure:
        raise
    except Exception as error:
        failure = SourceFailure(reason_of(error))
        failure.is_out_of_reach = (
            opens and isinstance(error, OSError) and not isinstance(error, ConnectionResetError)
        )
        raise failure from error


def one_line(text: str, most: int) -> str:
    """Return a stranger's text without escapes of a terminal and no longer than `most`."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:most])


def reason_of(error: Exception) -> str:
    """Return one short, printable line for an error; it may quote what a stranger has sent."""
    text = one_line(str(error), 2 * _REASON_LENGTH)
    kind = type(error).__name__
    if not text:
        return kind
    is_of_ours = isinstance(error, OSError | WeightsError)
    return (text if is_of_ours else f"{kind}: {text}")[:_REASON_LENGTH]


def stuck() -> SourceFailure:
    failure = SourceFailure("does not end when it is interrupted; its thread is left behind")
    failure.is_stuck = True
    return failure
