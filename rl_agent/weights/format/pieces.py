"""Keeps track of which pieces of a blob are here and verified."""

import threading
import time

import numpy as np
import numpy.typing as npt

from rl_agent.errors import WeightsError

Bits = npt.NDArray[np.bool_]


def bits_to_text(bits: Bits) -> str:
    return np.packbits(bits, bitorder="little").tobytes().hex()


def text_to_bits(text: str, count: int) -> Bits:
    """Parse a set of pieces. Raises WeightsError if `text` does not stand for `count` bits."""
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

    def recommend(self, bits: Bits, limit: int, wait_s: float) -> list[int]:
        """Choose up to `limit` of the wanted pieces that are here; waits up to `wait_s` for one to come.

        Those recommended least often come first. So receivers that ask at the same time get different pieces,
        which they can then give each other: each piece has to leave this host about once.
        """
        deadline = time.monotonic() + wait_s
        with self._grown:
            while True:
                candidates = np.flatnonzero(self._here & bits)
                left_s = deadline - time.monotonic()
                if len(candidates) or left_s <= 0 or self.is_complete:
                    break
                self._grown.wait(left_s)
            order = np.argsort(self._recommended[candidates], kind="stable")
            chosen = candidates[order[:limit]]
            self._recommended[chosen] += 1
            return [int(index) for index in chosen]
