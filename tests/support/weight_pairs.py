"""Pairs that count, and to which something happens in the middle."""

import os
import signal
from collections.abc import Callable

from rl_agent.weights.pairs.pairs import WaitLimit
from tests.support.gloo_pairs import GlooPair, GlooPairs

Hook = Callable[["WatchedPair", int], None]


class WatchedPair:
    """A pair that counts, and lets a test do something before it moves its n-th piece, from 0."""

    def __init__(self, pair: GlooPair, before: Hook) -> None:
        self.pair, self._before = pair, before
        self.memory, self.close = pair.memory, pair.close
        self.until: WaitLimit | None = None
        self.moved = 0
        self.moved_bytes = 0

    def send(self, size_bytes: int, until: WaitLimit) -> None:
        self._move(self.pair.send, size_bytes, until)

    def receive(self, size_bytes: int, until: WaitLimit) -> None:
        self._move(self.pair.receive, size_bytes, until)

    def _move(self, move: Callable[[int, WaitLimit], None], size_bytes: int, until: WaitLimit) -> None:
        self.until = until
        self._before(self, self.moved)
        self.moved += 1
        move(size_bytes, until)
        self.moved_bytes += size_bytes


class WatchedPairs(GlooPairs):
    def __init__(self, before: Hook = lambda pair, number: None) -> None:
        super().__init__()
        self._before = before
        self.joined: list[WatchedPair] = []

    def join(self, invitation: str, rank: int, until: WaitLimit) -> WatchedPair:  # type: ignore[override]
        self.joined.append(WatchedPair(super().join(invitation, rank, until), self._before))
        return self.joined[-1]

    @property
    def moved_bytes(self) -> int:
        return sum(pair.moved_bytes for pair in self.joined)


def killed_at(number: int) -> Hook:
    """Kills this process before it moves a piece."""

    def before(pair: WatchedPair, at: int) -> None:
        if at == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return before


def stuck_at(number: int) -> Hook:
    """Does not move a piece, as a process that was stopped, until the wait for it is over."""

    def before(pair: WatchedPair, at: int) -> None:
        if at == number and pair.until is not None:
            pair.until.wait(lambda: False)

    return before
