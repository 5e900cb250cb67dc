"""Transfers pieces over pairs: private groups of one sender and one receiver beside their connection.

    receiver  asks what there is over the authenticated connection of `source_tcp`, and for an invitation
    both      join: the sender is rank 0, the receiver rank 1; nobody else is in the group
    receiver  asks for a piece; the sender has it ready, answers, and sends it over the pair
    receiver  verifies it like any other

A death concerns its own pair alone. Every wait has a deadline, and ends at once when the connection beside
the pair does. A pair that fails costs its connection; the next ones to that source go by TCP for a while. So
do all where the other side has no such pairs, or no place for another one.

What moves the bytes knows no tokens: pairs are for networks that one trusts.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.sources.cooldown import COOLDOWN_S, Cooldown
from rl_agent.weights.sources.source_tcp import TcpConnection, TcpSource

_log = logging.getLogger(__name__)
SENDER, RECEIVER = 0, 1
JOIN_S = 20.0
MOVE_S = 10.0
"""One piece. Short, since who waits for all of a GPU's work waits for a transfer that is stuck on it, too."""
_SHORTEST_S, _LONGEST_S = 1e-4, 2e-3


@dataclass(frozen=True, slots=True)
class WaitLimit:
    """The deadline of a wait, and what cancels it."""

    deadline: Deadline
    is_cancelled: Callable[[], bool]

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Raises TimeoutError at the deadline, ConnectionAbortedError when cancelled."""
        pause_s = _SHORTEST_S
        while not is_done():
            if self.is_cancelled():
                raise ConnectionAbortedError("the other side has left, or this one is stopping")
            time.sleep(self.deadline.remaining_s(at_most=pause_s))
            pause_s = min(2 * pause_s, _LONGEST_S)


class Pair(Protocol):
    """One of two ranks; used by one thread. Raises OSError, after which it can only be closed."""

    def memory(self, size_bytes: int) -> memoryview:
        """Return host memory: what is sent is read from it, what was received is in it."""

    def send(self, size_bytes: int, until: WaitLimit) -> None: ...

    def receive(self, size_bytes: int, until: WaitLimit) -> None: ...

    def close(self) -> None:
        """End whatever is under way, without waiting for the other side."""


class PairMaker(Protocol):
    """Makes pairs of one kind. Thread-safe."""

    @property
    def kind(self) -> str:
        """Two sides with the same can make a pair."""

    def invite(self) -> str: ...

    def join(self, invitation: str, rank: int, until: WaitLimit) -> Pair:
        """Raises OSError if there is no pair by `until`; nothing is left of it then."""


class Pairing:
    """Makes pairs for this process, and skips sources with which that failed until their cooldown ends."""

    def __init__(self, maker: PairMaker) -> None:
        self.maker = maker
        self._cooldown = Cooldown()

    def is_cooling_down(self, source: str) -> bool:
        return source in self._cooldown

    def exclude(self, source: str, why: Exception) -> None:
        _log.warning("%s: uses TCP for %g s, because %s fails: %s", source, COOLDOWN_S, self.maker.kind, why)
        self._cooldown.add(source)


@dataclass(frozen=True, slots=True)
class PairSource:
    """A weight server whose bytes come over a pair, where it makes one."""

    tcp: TcpSource
    pairing: Pairing

    def __str__(self) -> str:
        return f"{self.pairing.maker.kind.split()[0]} {self.tcp}"

    def connection(self) -> "PairConnection":
        return PairConnection(self)


class PairConnection(TcpConnection):
    is_cut_at_once = False
    """The transport may be stuck in a driver."""

    def __init__(self, source: PairSource) -> None:
        super().__init__(source.tcp)
        self._name = str(source)
        self._pairing = source.pairing
        self._has_asked = False
        self._pair: Pair | None = None

    def close(self) -> None:
        super().close()
        if self._pair is not None:
            self._pair.close()
            self._pair = None

    def read_piece(
        self, weight_version: int, blob: str, index: int, start: int, target: memoryview, deadline: Deadline
    ) -> None:
        if not self._has_asked:
            self._has_asked = True
            self._pair = self._join(deadline)
        if self._pair is None:
            super().read_piece(weight_version, blob, index, start, target, deadline)
            return
        with self._failing_for_good():
            self.ask_for_piece(weight_version, blob, index, len(target), deadline, by_pair=True)
            self._pair.receive(len(target), WaitLimit(deadline.sooner(MOVE_S), self._is_over))
        # Not `target[:] =`, which would keep the interpreter's other threads waiting.
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(self._pair.memory(len(target)), np.uint8))

    def _join(self, deadline: Deadline) -> Pair | None:
        """Join a pair; None where pieces go by TCP: it failed before, or the other side has no such pairs."""
        maker = self._pairing.maker
        if self._pairing.is_cooling_down(self._name):
            return None
        with self._failing_for_good():
            try:
                invitation = self.invitation(maker.kind, deadline)
            except WeightsError as error:
                _log.info("%s: by TCP: %s", self._name, error)
                return None
            return maker.join(invitation, RECEIVER, WaitLimit(deadline.sooner(JOIN_S), self._is_over))

    def _is_over(self) -> bool:
        return self._is_interrupted or self.has_ended

    @contextmanager
    def _failing_for_good(self) -> Iterator[None]:
        """Give up the connection after a failure: the sender may still wait for what this side has left.

        An answer that says why, a WeightsError, is none of the pair's failures.
        """
        try:
            yield
        except OSError as error:
            if not self._is_interrupted:
                self._pairing.exclude(self._name, error)
            raise ConnectionResetError(f"{self._pairing.maker.kind}: {error}") from error
