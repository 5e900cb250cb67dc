"""Finds damage in the middle of SQLite's write-ahead log, which SQLite drops without a word. Reads only.

    header (32 bytes) ─► frame (24 bytes and a page) ─► frame ─► …       sqlite.org/fileformat2.html#walformat

A frame has the salts of its log's header and a checksum of all before it. SQLite uses the log up to the last
commit before the first wrong frame. A later commit with these salts was written, so it is lost. The end of a
log may be wrong: a kill tears it, a rollback leaves frames without a commit, older frames have other salts.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from rl_agent.system.files import open_regular

_ORDERS = {0x377F0682: "<u4", 0x377F0683: ">u4"}
"""The byte order of the words that checksums add up, by the log's magic number."""
_LARGEST_PAGE, _USUAL_PAGE = 65536, 4096


@dataclass(frozen=True, slots=True)
class WalDamage:
    """Numbers of frames: up to the last commit that SQLite uses, and from there to the last one written."""

    whole: int
    lost: int


def find_damage(path: Path) -> WalDamage | None:
    """Return the damage in the middle of a log; None for a whole log, or none. Raises OSError."""
    try:
        with open_regular(path) as file:
            return _scan(file)
    except FileNotFoundError:
        return None


def _scan(file: BinaryIO) -> WalDamage | None:
    if len(header := file.read(32)) < 32:
        return None
    order = _ORDERS.get(int.from_bytes(header[:4], "big"), "")
    checksum = _checksum(bytes(8), header[:24], order or "<u4")
    is_right = bool(order) and checksum == header[24:]
    salts = header[16:24] if is_right else b""  # a wrong header's are those of the first frame that has any
    page_bytes = min(int.from_bytes(header[8:12], "big"), _LARGEST_PAGE) if is_right else _USUAL_PAGE
    number = whole = last = 0
    while len(frame := file.read(24 + page_bytes)) == 24 + page_bytes:
        number, is_behind_damage = number + 1, not is_right
        salts = salts or frame[8:16] * any(frame[8:16])
        if is_right:
            checksum = _checksum(checksum, frame[:8] + frame[24:], order)
            is_right = frame[8:24] == salts + checksum
        is_commit = any(frame[4:8]) and frame[8:16] == salts
        if is_commit and (is_right or is_behind_damage):  # else a kill or a power cut tore this very frame
            last, whole = number, number if is_right else whole
    return WalDamage(whole, last - whole) if last > whole else None


def _checksum(before: bytes, content: bytes, order: str) -> bytes:
    """Continue a checksum: its two words are the newest sums; each sum is that of the two before and a word.

    So a word counts as often as the Fibonacci number of its distance from the end says, modulo 2**32.
    """
    words = np.concatenate([np.frombuffer(before, ">u4"), np.frombuffer(content, order)]).astype(np.uint32)
    words[1:2] -= words[:1]  # now the first two sums are the checksum before
    weights = _fibonacci(len(words))
    return np.array([words @ weights[1:], words @ weights[:-1]], ">u4").tobytes()


@cache
def _fibonacci(number: int) -> npt.NDArray[np.uint32]:
    """Return the Fibonacci numbers from the given one down to the first, modulo 2**32."""
    numbers = [0, 1]
    while len(numbers) <= number:
        numbers.append((numbers[-1] + numbers[-2]) % 2**32)
    return np.array(numbers[::-1], np.uint32)
