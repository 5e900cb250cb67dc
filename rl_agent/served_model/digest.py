"""Computes digests of files, by which a reader can tell whether a file is what was written.

A digest is BLAKE3 of the whole file, as `b3sum` prints it. All cores hash while the next pieces are read.
The library's `update_mmap` is not used: a file that is cut meanwhile would end the process (SIGBUS).
"""

import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

PIECE_BYTES = 16 * 2**20
_READERS = 4
"""Pieces that are read at once: a parallel file system is slow for a single reader."""
_LOG_AFTER_S, _LOG_EVERY_S = 2.0, 10.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Size and digest of a file."""

    size_bytes: int
    blake3: str


def digest_files(paths: Iterable[Path], *, below: Path | None = None) -> dict[str, FileDigest]:
    """Digest each file; the key is its name, or its path `below` a folder.

    The progress of a long reading is logged. Raises OSError for a file that cannot be read.
    """
    sizes = {path: path.stat().st_size for path in paths}
    names = {path: path.relative_to(below).as_posix() if below else path.name for path in sizes}
    progress = _Progress(sum(sizes.values()))
    with ThreadPoolExecutor(_READERS, "read") as readers:
        return {names[path]: _digest(path, size, readers, progress) for path, size in sizes.items()}


def _digest(path: Path, size: int, readers: ThreadPoolExecutor, progress: "_Progress") -> FileDigest:
    digest = blake3(max_threads=blake3.AUTO)
    with path.open("rb", buffering=0) as file:
        for piece in _pieces(file.fileno(), size, readers):
            digest.update(piece)
            progress.add(len(piece), path)
    return FileDigest(size, digest.hexdigest())


def _pieces(descriptor: int, size: int, readers: ThreadPoolExecutor) -> Iterator[bytes]:
    """Read the file from front to end, `_READERS` pieces ahead."""
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
    """Read `count` bytes, or fewer if the file has become shorter."""
    parts = []
    while count > 0 and (part := os.pread(descriptor, count, start)):
        parts.append(part)
        start, count = start + len(part), count - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class _Progress:
    """Logs the progress of a long reading."""

    def __init__(self, whole_bytes: int) -> None:
        self._whole = whole_bytes
        self._done = 0
        self._log_at = time.monotonic() + _LOG_AFTER_S

    def add(self, count: int, path: Path) -> None:
        self._done += count
        now = time.monotonic()
        if now >= self._log_at:
            self._log_at = now + _LOG_EVERY_S
            done, whole = self._done / 2**30, self._whole / 2**30
            _log.info("computing digests of the files in %s: %.1f of %.1f GiB read", path.parent, done, whole)


def first_difference(folder: Path, expected: Mapping[str, FileDigest]) -> str:
    """Describe the first file of `folder` that differs from its wanted digest; empty if none does."""
    for name, digest in expected.items():  # sizes tell most differences, and cost nothing
        try:
            size_bytes = (folder / name).stat().st_size
        except OSError as error:
            return f"{folder / name}: cannot be read ({error.strerror})"
        if size_bytes != digest.size_bytes:
            return f"{folder / name}: has {size_bytes} of the {digest.size_bytes} bytes that were written"
    try:
        digests = digest_files((folder / name for name in expected), below=folder)
    except OSError as error:
        return f"{error.filename or folder}: cannot be read ({error.strerror})"
    different = [name for name, digest in digests.items() if digest != expected[name]]
    return f"{folder / different[0]}: differs from what was written" if different else ""
