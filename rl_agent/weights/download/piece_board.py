"""Keeps track of which connection fetches which piece, and which may write to its place in the file.

    unclaimed ─► claimed by one connection ─► on its way ─► verified: there for good
        ▲                    │ too slow          │ too slow: a second one fetches it beside, the first counts
        └─── given back ◄────┴───────────────────┘

A piece's place is one connection's at a time. Who receives into it before the bytes are verified has it until
it has left, and is cut off if another has brought the piece meanwhile. So what is verified is never written
again, and after `close` nobody writes at all.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from rl_agent.weights.download.endgame import ClaimedPiece, worth_a_second_fetch
from rl_agent.weights.format.pieces import Bits, PieceSet

_NEWEST_SHARE = 0.3
"""The share of the newest piece in a source's pace."""
_CUT_AGAIN_S = 0.05
"""One that was just about to connect did not notice."""


class PieceClaim:
    """The pieces that one connection is to fetch; `cut` ends whatever it waits for, at once."""

    def __init__(self, source: str, cut: Callable[[], None]) -> None:
        self.source = source
        self.cut = cut
        self.indices: list[int] = []
        """The pieces, in order; it is at the first."""
        self.since = 0.0
        self.is_receiving = False
        """True while it receives into the place of the first, which it has."""
        self.was_cut = False
        """True if it was cancelled because another source was faster."""


class PieceBoard:
    """Assigns the missing pieces of one blob to connections. Thread-safe."""

    def __init__(self, verified: PieceSet, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._verified = verified
        self._clock = clock
        self._claims: list[PieceClaim] = []
        self._holders = np.zeros(verified.count, np.int32)
        self._places: dict[int, PieceClaim] = {}
        self._ready = Counter[int]()
        """Connections that have brought a piece and wait for its place."""
        self._pace_s: dict[str, float] = {}
        """Seconds that a piece takes, by source."""
        self._is_closed = False
        self._changed = threading.Condition(threading.RLock())

    @property
    def is_finished(self) -> bool:
        return self._verified.is_complete

    @property
    def has_work(self) -> bool:
        """Return whether some missing piece is claimed by no connection."""
        return bool(self._unclaimed().any())

    def open_to(self, source: str) -> Bits:
        """Return the missing pieces that the source may fetch: unclaimed ones, and slow ones of others."""
        with self._changed:
            pieces = self._unclaimed()
            now = self._clock()
            held = [
                ClaimedPiece(index, ahead, now - claim.since, self._pace_s.get(claim.source))
                for claim in self._claims
                for ahead, index in enumerate(claim.indices)
                if index not in self._verified
            ]
            pieces[list(worth_a_second_fetch(held, self._pace_s.get(source)))] = True
            return pieces

    def claim(self, claim: PieceClaim, indices: Iterable[int]) -> list[int]:
        """Give the claim those of `indices` that it may fetch; others keep what they are fetching."""
        with self._changed:
            pieces = self.open_to(claim.source)
            own = [index for index in dict.fromkeys(indices) if 0 <= index < len(pieces) and pieces[index]]
            for other in self._claims:
                self._let_go(other, [index for index in other.indices[1:] if index in own])
            claim.indices = list(own)
            claim.since = self._clock()
            self._holders[own] += 1
            self._claims.append(claim)
            return own

    def next(self, claim: PieceClaim) -> int | None:
        """Return the piece to fetch now; None if none of the claim is missing any more."""
        with self._changed:
            self._let_go(claim, [index for index in claim.indices if index in self._verified])
            claim.since = self._clock()
            return claim.indices[0] if claim.indices else None

    def give_back(self, claim: PieceClaim) -> None:
        """Return the claim's remaining pieces to the others."""
        with self._changed:
            self._leave(claim)
            self._let_go(claim, list(claim.indices))
            if claim in self._claims:
                self._claims.remove(claim)
            self._changed.notify_all()

    def take_place(self, claim: PieceClaim, index: int) -> bool:
        """Let the claim receive the piece in its place, if nobody else does; returns whether it may."""
        with self._changed:
            is_taken = index in self._places or self._ready[index] > 0
            if self._is_closed or is_taken or index in self._verified:
                return False
            self._places[index] = claim
            claim.is_receiving = True
            return True

    @contextmanager
    def writing(self, claim: PieceClaim, index: int) -> Iterator[bool]:
        """Yield whether verified bytes are still to be written; nobody else writes them meanwhile."""
        with self._changed:
            self._ready[index] += 1
            while not self._is_closed and index not in self._verified and index in self._places:
                self._cut(self._places[index])
                self._changed.wait(_CUT_AGAIN_S)
            self._ready[index] -= 1
            is_needed = not self._is_closed and index not in self._verified
            if is_needed:
                self._places[index] = claim
        try:
            yield is_needed
        finally:
            if is_needed:
                with self._changed:
                    self._leave(claim)

    def done(self, claim: PieceClaim, index: int) -> None:
        """Record a piece as written and verified."""
        with self._changed:
            self._verified.add(index)
            self._count(claim)
            self._leave(claim)
            self._let_go(claim, [index])
            if self.is_finished:  # else nobody waits for this: it makes no work
                self._changed.notify_all()

    def close(self) -> None:
        """Let nobody write from now on: wait for writers, and cut off connections that receive in place."""
        with self._changed:
            self._is_closed = True
            while self._places:
                for claim in list(self._places.values()):
                    self._cut(claim)
                self._changed.wait(_CUT_AGAIN_S)

    def wait_until(self, is_over: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `is_over`, checked when all is done or a piece is given back; at most `timeout_s`."""
        with self._changed:
            self._changed.wait_for(is_over, timeout_s)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _unclaimed(self) -> Bits:
        with self._changed:
            unclaimed: Bits = self._verified.missing() & (self._holders == 0)
            return unclaimed

    def _count(self, claim: PieceClaim) -> None:
        took_s = self._clock() - claim.since
        pace_s = self._pace_s.get(claim.source, took_s)
        self._pace_s[claim.source] = pace_s + _NEWEST_SHARE * (took_s - pace_s)

    def _let_go(self, claim: PieceClaim, indices: list[int]) -> None:
        self._holders[indices] -= 1
        claim.indices = [index for index in claim.indices if index not in indices]

    def _cut(self, claim: PieceClaim) -> None:
        if not claim.is_receiving:
            return
        if not claim.was_cut and claim.source in self._pace_s:
            self._count(claim)
        claim.was_cut = True
        claim.cut()

    def _leave(self, claim: PieceClaim) -> None:
        """Free the place that the claim has, if it has one."""
        claim.is_receiving = False
        left = [index for index, owner in self._places.items() if owner is claim]
        for index in left:
            del self._places[index]
        if left:
            self._changed.notify_all()
