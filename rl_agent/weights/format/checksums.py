"""Computes BLAKE3 digests of the pieces of a buffer, on threads.

Chosen over faster checksums because it is also safe against intent: a receiver that knows a manifest's digest
needs to trust neither the peer nor the proxy that its bytes came through. It runs at about memory speed.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from blake3 import blake3

Buffer = bytes | bytearray | memoryview


def digest(buffer: Buffer) -> str:
    """Compute a digest of 64 hexadecimal digits."""
    return blake3(buffer).hexdigest()


def piece_digests(buffer: Buffer, piece_bytes: int, *, threads: int) -> tuple[str, ...]:
    """Compute the digests of all pieces."""
    view = memoryview(buffer)
    starts = range(0, len(view), piece_bytes)
    with ThreadPoolExecutor(threads, "digest") as pool:
        return tuple(pool.map(lambda start: digest(view[start : start + piece_bytes]), starts))


def wrong_pieces(
    buffer: Buffer,
    piece_bytes: int,
    digests: Sequence[str],
    *,
    threads: int,
    among: Sequence[int] | None = None,
) -> list[int]:
    """List the indices of pieces, all or those `among` them, that differ from `digests`."""
    view = memoryview(buffer)
    indices = range(len(digests)) if among is None else among

    def is_wrong(index: int) -> bool:
        return digest(view[index * piece_bytes : (index + 1) * piece_bytes]) != digests[index]

    with ThreadPoolExecutor(threads, "digest") as pool:
        return [index for index, wrong in zip(indices, pool.map(is_wrong, indices), strict=True) if wrong]
