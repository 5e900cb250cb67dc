"""Keeps a file of weights open and mapped in the process that writes it, from version to version.

    created ─► written by several threads ─► published: read only ─► collected: reused ─► written again …
                                                                        │ somebody still has it open
                                                                        └─► left to them, and dropped here

New pages of memory cost several times what it costs to write to them, and to map pages costs as much as to
receive their bytes. So a file in memory is kept, open and mapped, from one version to the next.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_agent.errors import WeightsError

_MADV_POPULATE_READ = 22  # of Linux 5.14 on, without a name in Python; reading maps sixteen pages at once

_MAPPED_BYTES = 2**21
"""Pages are mapped so many bytes at a time."""


def map_file(path: Path) -> memoryview:
    """Map a file without a copy, empty for an empty file. The mapping lives as long as the view."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        # ACCESS_COPY rather than ACCESS_READ, since torch wants writable memory: writes stay in this process.
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


class DraftFile:
    """A file of weights that is being written.

    New pages are written by system call rather than through the mapping: they then cost half as much, and
    a full device is an error rather than the death of the process. Memory that is there is written in place.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = 0
        with needing(self._root, 0):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._closing = weakref.finalize(self, os.close, self._descriptor)
        self._lock = threading.Lock()
        self._memory: mmap.mmap | None = None
        self._mapped: set[int] = set()
        self._has_all_pages = False

    @property
    def _root(self) -> Path:
        """The folder of the store."""
        return self.path.parent.parent

    def resize(self, size_bytes: int) -> None:
        """Make room for as many bytes; what is there stays. Raises WeightsError if there is no room."""
        status, space = os.fstat(self._descriptor), os.fstatvfs(self._descriptor)
        if size_bytes - 512 * status.st_blocks > space.f_bavail * space.f_frsize:
            self.close()
            self.path.unlink()
            raise WeightsError(_no_room(self._root, size_bytes))
        if size_bytes != status.st_size:
            with needing(self._root, size_bytes):
                os.ftruncate(self._descriptor, size_bytes)
        if self._memory is None or size_bytes != len(self._memory):
            self._memory = None
            self._mapped.clear()
        self.size_bytes = size_bytes
        is_whole = 512 * os.fstat(self._descriptor).st_blocks >= size_bytes > 0
        self._has_all_pages = is_whole and is_memory(self.path)

    def write(self, start: int, content: memoryview | bytes) -> None:
        view = memoryview(content)
        with needing(self._root, self.size_bytes):
            while view:
                written = os.pwrite(self._descriptor, view, start)
                start, view = start + written, view[written:]

    def map(self) -> memoryview:
        """Map the bytes to read, with what is written later."""
        return map_file(self.path)

    def view(self) -> memoryview:
        """Return the bytes to read, in the mapping that is kept.

        Who reads has to have the file open, too: else, once collected, it is written again meanwhile.
        """
        return memoryview(self._mapping() if self.size_bytes else b"").toreadonly()

    def place(self, start: int, end: int) -> memoryview | None:
        """Return these bytes to write into, one copy less than `write`; None where that may fail."""
        if not self._has_all_pages:
            return None
        memory = self._mapping()
        for part in range(start // _MAPPED_BYTES, -(-end // _MAPPED_BYTES)):
            if part not in self._mapped:
                first = part * _MAPPED_BYTES
                # Without it, on an older kernel, pages come one at a time, as they are used.
                with contextlib.suppress(OSError):
                    memory.madvise(_MADV_POPULATE_READ, first, min(_MAPPED_BYTES, self.size_bytes - first))
                self._mapped.add(part)
        return memoryview(memory)[start:end]

    def is_used_elsewhere(self) -> bool:
        """Return whether anybody else has it open or mapped, here or in another process, or can open it."""
        if os.fstat(self._descriptor).st_nlink > 1:  # first: who has a name may open it, then drop the name
            return True
        try:
            # The kernel gives a write lease only on a file that no other open file or mapping refers to.
            fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:  # it is, or this file system has no leases
            return True
        return False

    def rename(self, path: Path) -> None:
        self.path.rename(path)
        self.path = path

    def close(self) -> None:
        self._memory = None
        self._closing()

    def _mapping(self) -> mmap.mmap:
        with self._lock:
            if self._memory is None:
                self._memory = mmap.mmap(self._descriptor, self.size_bytes)
            return self._memory


def is_memory(path: Path) -> bool:
    """Return whether a file lies in memory, where one that has its pages can always be written to."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with Path("/proc/self/mountinfo").open(encoding="utf-8") as mounts:
        return any(words[2] == number and "tmpfs" in words for words in map(str.split, mounts))


@contextmanager
def needing(root: Path, size_bytes: int) -> Iterator[None]:
    """Turn a full device below `root` into a WeightsError that says what would help."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise WeightsError(_no_room(root, size_bytes)) from error


def _no_room(root: Path, size_bytes: int) -> str:
    there = next((folder for folder in (root, *root.parents) if folder.is_dir()), root)
    try:
        space = os.statvfs(there)
        free = f"{space.f_bavail * space.f_frsize:,}"
    except OSError:
        free = "an unknown number"
    return (
        f"{root}: no room for {size_bytes:,} bytes of weights, {free} are free; make room there, or let"
        " weights.store name a folder with more"
    )
