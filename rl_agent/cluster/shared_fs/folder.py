"""The folder that nodes share: JSON records that are written whole, and names that only one node can create.

A record is replaced by rename and read by opening its name, because opening is what NFS revalidates
(close-to-open consistency). `stat` and directory listings may be a minute old, so a listing only serves to
discover names: a late one costs time, never correctness.

`tests.support.cluster.lagging_folder` shows these delays, reproducibly, on a local disk. A single process has
`MemoryFolder`.
"""

import errno
import json
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rl_agent.errors import StoreError
from rl_agent.system import files

_T = TypeVar("_T")
Record = dict[str, Any]
Stamp = tuple[int, ...]
"""A version of a file: two versions have different stamps."""

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


class Folder(Protocol):
    """A folder of records with relative names; methods raise StoreError if the file system fails."""

    def write_whole(self, name: str, record: Record, *, is_durable: bool = True) -> None:
        """Replace a record; readers see the old one or the new one. A durable one survives a power cut."""

    def read(self, name: str) -> Record | None:
        """Read a record; None if there is none, or the file is not a record."""
        return self.read_if_changed(name, None)[1]

    def read_if_changed(self, name: str, seen: Stamp | None) -> tuple[Stamp | None, Record | None]:
        """Return the version of a record, and the record itself unless that version is `seen`."""

    def create_exclusive(self, name: str, record: Record) -> bool:
        """Create a record, whole; False if its name exists. Of all nodes that try, one gets True."""

    def names(self, folder: str) -> list[str]:
        """List a folder, sorted; may be late, and is empty if there is no such folder."""


class SharedFolder(Folder):
    """A folder on a file system that all nodes see."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._has_links = True

    def write_whole(self, name: str, record: Record, *, is_durable: bool = True) -> None:
        path = self.root / name
        try:
            self._in_folder(path, lambda: files.write_whole(path, _encode(record), is_durable=is_durable))
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error.strerror}") from error

    def read_if_changed(self, name: str, seen: Stamp | None) -> tuple[Stamp | None, Record | None]:
        for is_last in (False, True):
            try:
                return self._open(name, seen)
            except OSError as error:
                if error.errno in _ABSENT:
                    return None, None
                if error.errno != errno.ESTALE or is_last:  # stale: the name has another file by now
                    raise StoreError(f"{self.root / name}: cannot be read: {error.strerror}") from error
        raise AssertionError

    def _open(self, name: str, seen: Stamp | None) -> tuple[Stamp | None, Record | None]:
        with (self.root / name).open("rb") as file:
            stat = os.fstat(file.fileno())
            stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            return stamp, None if stamp == seen else _parse(file.read())

    def create_exclusive(self, name: str, record: Record) -> bool:
        """Create by a hard link, so that the record appears whole; without hard links by O_EXCL."""
        path = self.root / name
        try:
            if self._has_links:
                try:
                    return self._in_folder(path, lambda: _link_new(path, record))
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    self._has_links = False
            return self._in_folder(path, lambda: _open_new(path, record))
        except OSError as error:
            raise StoreError(f"{path}: cannot be created: {error.strerror}") from error

    def names(self, folder: str) -> list[str]:
        path = self.root / folder
        try:
            return sorted(entry.name for entry in os.scandir(path) if not entry.name.startswith("."))
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise StoreError(f"{path}: cannot be listed: {error.strerror}") from error

    def _in_folder(self, path: Path, write: Callable[[], _T]) -> _T:
        """Write, and make the folder of `path` if it is missing, but not a log path that was removed.

        To check first would cost one more request to the server for every write.
        """
        try:
            return write()
        except FileNotFoundError:
            if not self.root.is_dir():
                raise FileNotFoundError(errno.ENOENT, f"the folder {self.root} is gone") from None
            path.parent.mkdir(parents=True, exist_ok=True)
            return write()


def _encode(record: Record) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _parse(content: bytes) -> Record | None:
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _link_new(path: Path, record: Record) -> bool:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        _open_new(temporary, record)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return temporary.stat().st_nlink > 1  # NFS may lose the answer to a link that it made
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _open_new(path: Path, record: Record) -> bool:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "wb") as file:
        file.write(_encode(record))
    return True


class MemoryFolder(Folder):
    """A folder in the memory of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, tuple[Stamp, str]] = {}
        self._version = 0

    def write_whole(self, name: str, record: Record, *, is_durable: bool = True) -> None:
        with self._lock:
            self._version += 1
            self._files[name] = ((self._version,), json.dumps(record))

    def read_if_changed(self, name: str, seen: Stamp | None) -> tuple[Stamp | None, Record | None]:
        stamp, text = self._files.get(name, (None, "null"))
        return stamp, None if stamp == seen else json.loads(text)

    def create_exclusive(self, name: str, record: Record) -> bool:
        with self._lock:
            if name in self._files:
                return False
            self._version += 1
            self._files[name] = ((self._version,), json.dumps(record))
            return True

    def names(self, folder: str) -> list[str]:
        start = folder + "/"
        with self._lock:
            below = [name[len(start) :] for name in self._files if name.startswith(start)]
        return sorted({name.partition("/")[0] for name in below})


class SingleNodeFolder(MemoryFolder):
    """A folder for a run of one node: no other node claims anything, so claims are not kept."""

    def create_exclusive(self, name: str, record: Record) -> bool:
        return True
