"""Digests of files, so that whoever reads one can tell whether it is what was written.

BLAKE3 of the whole file, as `b3sum` prints it: all cores hash while the next pieces are read.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

PIECE_BYTES = 16 * 2**20
_READERS = 4
"""Pieces that are read at once; file systems of many disks give little to a single reader."""
_SAY_AFTER_S, _SAY_EVERY_S = 2.0, 10.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What a file holds, in short."""

    size_bytes: int
    blake3: str = ""
    """Empty in records of before it was BLAKE3; then the size alone is compared."""


def digest_files(paths: Iterable[Path], *, below: Path | None = None) -> dict[str, FileDigest]:
    """Digest of each file by its name, or by its path `below` a folder.

    What takes longer than a moment is logged as it goes on. Raises OSError for one that cannot be read.
    """
    sizes = {path: path.stat().st_size for path in paths}
    names = {path: path.relative_to(below).as_posix() if below else path.name for path in sizes}
    say = _Progress(sum(sizes.values()))
    with ThreadPoolExecutor(_READERS, "read") as readers:
        return {names[path]: _digest(path, size, readers, say) for path, size in sizes.items()}


def _digest(path: Path, size: int, readers: ThreadPoolExecutor, say: "_Progress") -> FileDigest:
    digest = blake3(max_threads=blake3.AUTO)
    with path.open("rb", buffering=0) as file:
        for piece in _pieces(file.fileno(), size, readers):
            digest.update(piece)
            say.add(len(piece), path)
    return FileDigest(size, digest.hexdigest())


def _pieces(descriptor: int, size: int, readers: ThreadPoolExecutor) -> Iterator[bytes]:
    """The file from front to end; `_READERS` pieces are on their way."""
    starts = iter(range(0, size, PIECE_BYTES))
    coming: deque[Future[bytes]] = deque()

    def ask() -> None:
        if (start := next(starts, None)) is not None:
            coming.append(readers.submit(_read, descriptor, start, min(PIECE_BYTES, size - start)))

    for _ in range(_READERS):
        ask()
    while coming:
        piece = coming.popleft().result()
        ask()
        yield piece


def _read(descriptor: int, start: int, count: int) -> bytes:
    """Fewer bytes where the file has become shorter."""
    parts = []
    while count > 0 and (part := os.pread(descriptor, count, start)):
        parts.append(part)
        start, count = start + len(part), count - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class _Progress:
    """Says how far a long reading is."""

    def __init__(self, whole_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._whole = whole_bytes
        self._done = 0
        self._clock = clock
        self._say_at = clock() + _SAY_AFTER_S

    def add(self, count: int, path: Path) -> None:
        self._done += count
        now = self._clock()
        if now >= self._say_at:
            self._say_at = now + _SAY_EVERY_S
            done, whole = self._done / 2**30, self._whole / 2**30
            _log.info("digest of what is in %s: %.1f of %.1f GiB read", path.parent, done, whole)


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
        recorded = (folder / name for name, digest in wanted.items() if digest.blake3)
        found = digest_files(recorded, below=folder)
    except OSError as error:
        return f"{error.filename or folder}: cannot be read ({error.strerror})"
    different = [name for name, digest in found.items() if digest != wanted[name]]
    return f"{folder / different[0]}: differs from what was written" if different else ""
