"""Which pieces of a blob are here and verified, and which of those still missing is whose job."""

import threading
import time
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from rl_agent.errors import WeightsError

Bits = npt.NDArray[np.bool_]


def bits_to_text(bits: Bits) -> str:
    return np.packbits(bits, bitorder="little").tobytes().hex()


def text_to_bits(text: str, count: int) -> Bits:
    """Raises WeightsError if `text` does not stand for `count` bits."""
    try:
        packed = np.frombuffer(bytes.fromhex(text), np.uint8)
    except ValueError as error:
        raise WeightsError(f"a set of pieces cannot be read: {error}") from error
    if len(packed) != -(-count // 8):
        raise WeightsError("a set of pieces has another length than the blob")
    return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)


class PieceSet:
    """The verified pieces of a blob. Grows only: a piece in it is never written again. Thread-safe."""

    def __init__(self, count: int, *, is_complete: bool = False) -> None:
        self.count = count
        self._here: Bits = np.full(count, is_complete)
        self._left = 0 if is_complete else count
        self._recommended = np.zeros(count, np.int64)
        self._grown = threading.Condition()

    @property
    def is_complete(self) -> bool:
        return self._left == 0

    def __contains__(self, index: int) -> bool:
        return 0 <= index < self.count and bool(self._here[index])

    def missing(self) -> Bits:
        with self._grown:
            return ~self._here

    def add(self, index: int) -> None:
        with self._grown:
            if not self._here[index]:
                self._here[index] = True
                self._left -= 1
                self._grown.notify_all()

    def recommend(self, wanted: Bits, limit: int, wait_s: float) -> list[int]:
        """Up to `limit` of the wanted pieces that are here; waits for one to come, but not for ever.

        Those recommended least often come first. So receivers that ask at the same time get different pieces,
        which they can then give each other: each piece has to leave this host about once.
        """
        deadline = time.monotonic() + wait_s
        with self._grown:
            while True:
                candidates = np.flatnonzero(self._here & wanted)
                left_s = deadline - time.monotonic()
                if len(candidates) or left_s <= 0 or self.is_complete:
                    break
                self._grown.wait(left_s)
            order = np.argsort(self._recommended[candidates], kind="stable")
            chosen = candidates[order[:limit]]
            self._recommended[chosen] += 1
            return [int(index) for index in chosen]


class PieceBoard:
    """Hands the missing pieces of one blob to several workers, each to one at a time. Thread-safe."""

    def __init__(self, verified: PieceSet) -> None:
        self._verified = verified
        self._claimed: Bits = np.zeros(verified.count, np.bool_)
        self._changed = threading.Condition(threading.RLock())

    @property
    def is_finished(self) -> bool:
        return self._verified.is_complete

    def unclaimed(self) -> Bits:
        with self._changed:
            return self._verified.missing() & ~self._claimed

    def claim(self, indices: Iterable[int]) -> list[int]:
        """Those of `indices` that are now the caller's to fetch."""
        with self._changed:
            free = self._verified.missing() & ~self._claimed
            own = [index for index in dict.fromkeys(indices) if 0 <= index < len(free) and free[index]]
            self._claimed[own] = True
            return own

    def done(self, index: int) -> None:
        """The piece is there, and verified."""
        with self._changed:
            self._verified.add(index)
            self._claimed[index] = False
            if self.is_finished:  # else nobody waits for this: it makes no work
                self._changed.notify_all()

    def give_back(self, indices: Iterable[int]) -> None:
        with self._changed:
            self._claimed[list(indices)] = False
            self._changed.notify_all()

    @property
    def has_work(self) -> bool:
        """Whether a missing piece is nobody's job."""
        return bool(self.unclaimed().any())

    def wait_until(self, is_over: Callable[[], bool], timeout_s: float) -> None:
        """Until `is_over`, looked at when all is done or a piece is given back; at most `timeout_s`."""
        with self._changed:
            self._changed.wait_for(is_over, timeout_s)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
