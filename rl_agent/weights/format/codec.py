"""Encodes a block of values as its difference from an earlier one; exact for every bit pattern.

A value is its bits, read as an integer; the difference is taken modulo its width. For floats of one sign
that counts units in the last place, so most differences of a small training step are 0, and most others are
1 or -1. What is written is what is left after each such guess:

    where     the changed positions: gaps between them where they are few, else one bit a value
    sign      one bit a change
    large     one bit a change: is it more than one unit?
    rest      the size of the large ones less two, in planes of one byte, low bytes first

Each of these is compressed by itself if that helps. A block that does not get smaller is kept as it is.
"""

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rl_agent.errors import WeightsError

Bytes = npt.NDArray[np.uint8]
Unsigned = npt.NDArray[np.unsignedinteger]

SAME, RAW, GAPS, BITMAP = range(4)
"""Encoding of a block: not written, as it is, or by its changes."""

HEADER = struct.Struct("<BBBxIII")
"""mode, bytes of a gap, planes of the rest, (unused), values, changes, large changes"""
_STREAM = struct.Struct("<I")
_COMPRESSED = 1 << 31

DENSE = 0.2
"""Share of changed values from which on a bit a value costs less than a gap a change."""
_COMPRESSION_LEVEL = 1
_TRIED_BYTES = 64
"""Streams shorter than this are not worth a compressor's frame."""
MAX_BLOCK_BYTES = 2**26
"""Decoding takes some twenty times as much, in each thread."""
_UNSIGNED: dict[int, np.dtype[np.unsignedinteger]] = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
_SIGNED: dict[int, np.dtype[np.signedinteger]] = {width: np.dtype(f"<i{width}") for width in (1, 2, 4, 8)}


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a block before compression: arrays of bytes, in the order in which they are written."""

    changes: int
    large: int
    gap_bytes: int
    """0: `where` is one bit a value."""
    where: list[Bytes]
    signs: Bytes
    is_large: Bytes
    rest: list[Bytes]


def encode(base: memoryview | Bytes, new: memoryview | Bytes, width: int) -> bytes:
    """Encode the block `new`, given `base`; both hold values of `width` bytes and are equally long."""
    return pack_block(_find_changes(base, new, width), new, width)


def _find_changes(base: memoryview | Bytes, new: memoryview | Bytes, width: int) -> Changes | None:
    old, now = (np.frombuffer(block, _UNSIGNED[width]) for block in (base, new))
    positions = _nonzero(old != now)
    if len(positions) == 0:
        return None
    difference = (now.take(positions) - old.take(positions)).view(_SIGNED[width])
    # The most negative value is its own absolute value; unsigned, that is the right number.
    size = np.abs(difference).view(_UNSIGNED[width])
    is_large = size > 1
    rest = size.take(np.flatnonzero(is_large)) - _UNSIGNED[width].type(2)
    gap_bytes, where = _where(positions, len(now))
    return Changes(
        changes=len(positions),
        large=len(rest),
        gap_bytes=gap_bytes,
        where=where,
        signs=np.packbits(difference < 0, bitorder="little"),
        is_large=np.packbits(is_large, bitorder="little"),
        rest=_planes(rest, _significant_bytes(rest)),
    )


def pack_block(changes: Changes | None, new: memoryview | Bytes, width: int) -> bytes:
    """Write the block `new` by its changes, or as it is where that is shorter; None: nothing changed."""
    values = len(new) // width
    if changes is None:
        return HEADER.pack(SAME, 0, 0, values, 0, 0)
    mode = GAPS if changes.gap_bytes else BITMAP
    parts = [HEADER.pack(mode, changes.gap_bytes, len(changes.rest), values, changes.changes, changes.large)]
    for stream in (*changes.where, changes.signs, changes.is_large, *changes.rest):
        parts += _pack_stream(stream)
    if sum(map(len, parts)) < len(new):
        return b"".join(parts)
    return HEADER.pack(RAW, 0, 0, values, 0, 0) + bytes(new)


def decode(
    base: memoryview | Bytes, payload: memoryview | bytes, target: memoryview | Bytes, width: int
) -> None:
    """Write the block that `payload` stands for to `target`, which is as long as `base`.

    Raises WeightsError if the payload cannot be one of a block of this size. It need not be trusted: nothing
    is read or written outside the three buffers, and no more memory is taken than the block's size allows.
    """
    old = np.frombuffer(base, _UNSIGNED[width])
    out = np.frombuffer(target, _UNSIGNED[width])
    reader = _Reader(payload)
    mode, gap_bytes, planes, values, changes, large = HEADER.unpack(reader.take(HEADER.size))
    if values != len(old) or changes > values or large > changes or planes > width:
        raise WeightsError("delta: a block's header does not fit the block")
    if mode == RAW:
        out[:] = np.frombuffer(reader.take(out.nbytes), out.dtype)
        return
    out[:] = old
    if mode == SAME:
        return
    if mode == GAPS and gap_bytes in (1, 2, 4):
        positions = _from_gaps(reader.planes(changes, gap_bytes))
        if changes and positions[-1] >= values:
            raise WeightsError("delta: a block's changes lie outside it")
    elif mode == BITMAP and gap_bytes == 0:
        positions = _nonzero(_bits(reader.stream(_bytes_for(values)), values))
        if len(positions) != changes:
            raise WeightsError("delta: a block has more or fewer changes than it says")
    else:
        raise WeightsError(f"delta: a block is written in an unknown way ({mode}, {gap_bytes})")
    is_negative = _bits(reader.stream(_bytes_for(changes)), changes)
    is_large = _bits(reader.stream(_bytes_for(changes)), changes)
    size = np.ones(changes, out.dtype)
    if large:
        places = _nonzero(is_large)
        if len(places) != large:
            raise WeightsError("delta: a block has more or fewer large changes than it says")
        size[places] = _from_planes(reader.planes(large, planes), large, width) + out.dtype.type(2)
    # Two's complement, branch-free: flip the bits of the negative ones and add one.
    ones = is_negative.view(np.uint8).astype(out.dtype)
    np.add.at(out, positions, np.bitwise_xor(size, -ones) + ones)


class _Reader:
    """Takes a payload apart, never reading past its end."""

    def __init__(self, payload: memoryview | bytes) -> None:
        self._payload = memoryview(payload)
        self._position = 0

    def take(self, size_bytes: int) -> memoryview:
        part = self._payload[self._position : self._position + size_bytes]
        if len(part) != size_bytes:
            raise WeightsError("delta: a block is cut short")
        self._position += size_bytes
        return part

    def stream(self, size_bytes: int) -> Bytes:
        """Read the next stream, which has `size_bytes` once decompressed."""
        (word,) = _STREAM.unpack(self.take(_STREAM.size))
        stored = self.take(word & ~_COMPRESSED)
        if word & _COMPRESSED:
            return np.frombuffer(_decompress(stored, size_bytes), np.uint8)
        if len(stored) != size_bytes:
            raise WeightsError("delta: a stream has another length than it must have")
        return np.frombuffer(stored, np.uint8)

    def planes(self, count: int, planes: int) -> list[Bytes]:
        return [self.stream(count) for _ in range(planes)]


def _nonzero(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Find the true values; where they are few, twice as fast as numpy: whole words are skipped."""
    whole = len(mask) // 8 * 8
    words = mask[:whole].view(np.uint64)
    places = np.flatnonzero(words != 0)
    if len(places) > len(words) * 0.4:
        return np.flatnonzero(mask)
    inside = np.flatnonzero(words.take(places).view(np.bool_))
    positions = (places * 8).take(inside >> 3) + (inside & 7)
    return np.concatenate([positions, np.flatnonzero(mask[whole:]) + whole])


def _where(positions: npt.NDArray[np.int64], values: int) -> tuple[int, list[Bytes]]:
    if len(positions) >= values * DENSE:
        mask = np.zeros(values, np.bool_)
        mask[positions] = True
        return 0, [np.packbits(mask, bitorder="little")]
    gaps = positions.astype(np.uint32)
    gaps[1:] -= gaps[:-1].copy() + np.uint32(1)
    gap_bytes = {1: 1, 2: 2, 3: 4, 4: 4}[_significant_bytes(gaps)]
    return gap_bytes, _planes(gaps, gap_bytes)


def _from_gaps(planes: list[Bytes]) -> npt.NDArray[np.int64]:
    gaps = _from_planes(planes, len(planes[0]), len(planes))
    positions = np.cumsum(gaps, dtype=np.int64)
    positions += np.arange(len(gaps))
    return positions


def _significant_bytes(numbers: npt.NDArray[np.integer]) -> int:
    return max(1, -(-int(numbers.max()).bit_length() // 8)) if len(numbers) else 0


def _planes(numbers: npt.NDArray[np.integer], planes: int) -> list[Bytes]:
    by_byte = numbers.view(np.uint8).reshape(len(numbers), numbers.itemsize)
    return [np.ascontiguousarray(by_byte[:, index]) for index in range(planes)]


def _from_planes(planes: list[Bytes], count: int, width: int) -> Unsigned:
    numbers = np.zeros((count, width), np.uint8)
    for index, plane in enumerate(planes):
        numbers[:, index] = plane
    return numbers.view(_UNSIGNED[width])[:, 0]


def _bits(stream: Bytes, count: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(stream, count=count, bitorder="little").view(np.bool_)


def _bytes_for(bits: int) -> int:
    return -(-bits // 8)


def _pack_stream(stream: Bytes) -> list[bytes]:
    if len(stream) >= _TRIED_BYTES:
        compressed = _compress(stream)
        if len(compressed) < len(stream):
            return [_STREAM.pack(len(compressed) | _COMPRESSED), compressed]
    return [_STREAM.pack(len(stream)), stream.tobytes()]


def _compress(stream: Bytes) -> bytes:
    from pyarrow import Codec

    compressed: bytes = Codec("zstd", compression_level=_COMPRESSION_LEVEL).compress(stream, asbytes=True)
    return compressed


def _decompress(stored: memoryview, size_bytes: int) -> bytes:
    from pyarrow import ArrowException, Codec

    try:
        content: bytes = Codec("zstd").decompress(stored, size_bytes, asbytes=True)
    except (ArrowException, OSError, ValueError) as error:
        raise WeightsError(f"delta: a stream cannot be decompressed: {error}") from error
    if len(content) != size_bytes:
        raise WeightsError("delta: a stream has another length than it must have")
    return content
