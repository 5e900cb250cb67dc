"""Digests of files, so that a node can tell whether it sees what another node wrote.

A file is read in pieces that several threads hash at once, so its digest is that of its pieces' digests.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PIECE_BYTES = 64 * 2**20
_BLOCK_BYTES = 2**20
_MAX_THREADS = 8


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What a file holds, in short."""

    size_bytes: int
    blake2b: str


def digest_files(paths: Iterable[Path]) -> dict[str, FileDigest]:
    """Digest of each file by its name. Raises OSError for one that cannot be read."""
    sizes = {path: path.stat().st_size for path in paths}
    pieces = [(path, start) for path, size in sizes.items() for start in range(0, max(size, 1), PIECE_BYTES)]
    whole = {path: hashlib.blake2b(digest_size=16) for path in sizes}
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as threads:
        digests = threads.map(lambda piece: _digest_of_piece(*piece), pieces)
        for (path, _), digest in zip(pieces, digests, strict=True):
            whole[path].update(digest)
    return {path.name: FileDigest(size, whole[path].hexdigest()) for path, size in sizes.items()}


def _digest_of_piece(path: Path, start: int) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        left = PIECE_BYTES
        while left > 0 and (block := file.read(min(left, _BLOCK_BYTES))):
            digest.update(block)
            left -= len(block)
    return digest.digest()


def first_difference(folder: Path, wanted: Mapping[str, FileDigest]) -> str:
    """The first file of `folder` that is not as `wanted` says, and in what; empty if all are."""
    for name, digest in wanted.items():  # sizes tell most differences, and cost nothing
        try:
            size_bytes = (folder / name).stat().st_size
        except OSError as error:
            return f"{folder / name}: cannot be read ({error.strerror})"
        if size_bytes != digest.size_bytes:
            return f"{folder / name}: has {size_bytes} of the {digest.size_bytes} bytes that were written"
    try:
        found = digest_files(folder / name for name in wanted)
    except OSError as error:
        return f"{error.filename}: cannot be read ({error.strerror})"
    different = [name for name, digest in wanted.items() if found[name] != digest]
    return f"{folder / different[0]}: differs from what was written" if different else ""
