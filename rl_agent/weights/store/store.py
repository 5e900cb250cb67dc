"""Stores weight versions in a folder, on disk or in /dev/shm: written once, whole, never changed.

    version-000007/manifest.json   full.bin   delta.bin (only if it is a delta too)
    draft-000008-…/                being written or fetched; renamed when it is complete and verified
    preallocated.bin               memory for the next version, of one that was collected or new

One process writes to a folder at a time (it holds a lock on `owner.lock`); any number read. Old versions are
collected when nobody in the writing process holds them; a reader elsewhere that has a file open keeps its
bytes, as files do. A draft survives its writer: what it holds counts only as far as it matches the digests.

Every version here can be made or fetched again. So one whose files are gone, or differ, is dropped with a
warning, and what lies in the place of another file is removed: damage costs one try, not all that follow.
"""

import logging
import mmap
import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import Timeout

from rl_agent.errors import WeightsError
from rl_agent.system.files import remove, sync
from rl_agent.weights.format.manifest import Blob, Manifest, dump_manifest, parse_manifest
from rl_agent.weights.store import owner_lock
from rl_agent.weights.store.mapped_file import DraftFile, map_file, needing
from rl_agent.weights.store.preallocated import PreallocatedFile

MANIFEST = "manifest.json"
PREALLOCATED = "preallocated.bin"
FULL = "full"
DELTA = "delta"

_log = logging.getLogger(__name__)
_VERSION = re.compile(r"^version-(\d{6,})$")


Stamp = tuple[int, int, int]


class DamagedVersion(WeightsError):
    """A version's bytes on this host are not those of its manifest."""


def version_name(weight_version: int) -> str:
    return f"version-{weight_version:06d}"


@dataclass(eq=False)
class Snapshot:
    """A published version in its folder."""

    folder: Path
    manifest: Manifest
    full: DraftFile | None = None
    """The file of a version that this process has written."""
    _views: dict[str, memoryview] = field(default_factory=dict)

    @property
    def weight_version(self) -> int:
        return self.manifest.weight_version

    def path(self, blob: str) -> Path:
        return self.folder / f"{blob}.bin"

    def map(self, blob: str) -> memoryview:
        return map_file(self.path(blob))

    def stamp(self) -> Stamp:
        """Return what changes once the full blob is written to. Raises OSError if it is gone."""
        status = self.path(FULL).stat()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def check_unchanged(self, stamp: Stamp) -> None:
        """Raises DamagedVersion if the full blob was written to since it had this stamp."""
        try:
            is_same = self.stamp() == stamp
        except OSError:
            is_same = False
        if not is_same:
            raise DamagedVersion(f"{self.folder}: was written to after it was verified")

    def view(self, blob: str) -> memoryview:
        """Return its bytes to read only, in a mapping that all who ask share; it goes with the version.

        Who reads after that has to have the file open, too.
        """
        if blob == FULL and self.full is not None:
            return self.full.view()
        if blob not in self._views:
            with self.path(blob).open("rb") as file:
                self._views[blob] = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return self._views[blob]


@dataclass(eq=False)
class Draft:
    """A version that is being written."""

    folder: Path
    is_resumed: bool
    """True if an earlier writer may have left something in it."""
    take_preallocated: Callable[[], DraftFile | None]
    full: DraftFile | None = None

    def path(self, blob: str) -> Path:
        return self.folder / f"{blob}.bin"

    def create(self, blob: str, size_bytes: int) -> DraftFile:
        """Create a blob to be written; what an earlier, interrupted writer left there is kept.

        Raises WeightsError if there is no room.
        """
        path = self.path(blob)
        file = self.take_preallocated() if blob == FULL and not path.exists() else None
        if file is None:
            file = DraftFile(path)
        else:
            file.rename(path)
            os.utime(path)  # for who still reads it as what it was
        file.resize(size_bytes)
        if blob == FULL:
            self.full = file
        return file


class SnapshotStore:
    """The versions under one folder. Thread-safe."""

    def __init__(self, root: Path, *, keep_versions: int, owner_pid: int | None = None) -> None:
        """Raises WeightsError if another process writes to `root`, or there is no room.

        The folder may be removed once the process `owner_pid` is dead, or where none is named this one.
        """
        self.root = root
        self._keep = keep_versions
        self._lock = threading.RLock()
        self._holders: Counter[int] = Counter()
        self._snapshots: dict[int, Snapshot] = {}
        self._preallocated = PreallocatedFile(root / PREALLOCATED)
        try:
            with needing(root, 0):
                root.mkdir(mode=0o700, parents=True, exist_ok=True)  # in shared memory others could read it
                self._owner = owner_lock.take(root, os.getpid() if owner_pid is None else owner_pid)
        except Timeout as error:
            raise WeightsError(
                f"{root}: another process writes weights there; give each process its own folder"
            ) from error
        try:
            for weight_version in list(versions_in(root)):
                try:
                    self._snapshots[weight_version] = open_snapshot(root, weight_version)
                except WeightsError as error:
                    _log.warning("%s; it is removed", error)
                    remove(root / version_name(weight_version))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the folder free for another writer; the versions stay."""
        with self._lock:
            self._preallocated.stop_preparing()
        self._owner.release()

    def __enter__(self) -> "SnapshotStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def versions(self) -> list[int]:
        """Published versions, oldest first."""
        with self._lock:
            self._drop_damaged()
            return sorted(self._snapshots)

    @property
    def newest(self) -> Snapshot | None:
        with self._lock:
            self._drop_damaged()
            return self._snapshots[max(self._snapshots)] if self._snapshots else None

    def draft(self, weight_version: int, *, content: str | None = None) -> Draft:
        """Start a version; with the digest of its content, go on with an interrupted draft of the same.

        All other drafts are dropped: nobody will finish them.
        """
        folder = self.root / f"draft-{weight_version:06d}-{content[:16] if content else 'own'}"
        with self._lock:  # else it could be a version that is just being collected
            for other in self.root.glob("draft-*"):
                if other != folder or content is None:
                    remove(other)
        is_resumed = folder.exists()
        with needing(self.root, 0):
            folder.mkdir(exist_ok=True)
        return Draft(folder, is_resumed, self._take_preallocated)

    def publish(self, draft: Draft, manifest: Manifest) -> Snapshot:
        """Make a draft, whose bytes the caller has verified, a version that all can see.

        Raises WeightsError if it is not newer than every version here; the draft is then left alone.
        """
        newest = self.newest
        if newest is not None and manifest.weight_version <= newest.weight_version:
            raise WeightsError(
                f"{self.root}: version {manifest.weight_version} is not newer than {newest.weight_version}"
            )
        for path in draft.folder.iterdir():
            if path.stem not in blobs(manifest):
                remove(path)
        text = dump_manifest(manifest)
        with needing(self.root, manifest.full.size_bytes + len(text)):
            (draft.folder / MANIFEST).write_bytes(text)
            for path in (*draft.folder.iterdir(), draft.folder):
                sync(path)
        folder = self.root / version_name(manifest.weight_version)
        remove(folder)  # it is none of the versions here
        draft.folder.rename(folder)
        sync(self.root)
        if draft.full is not None:
            draft.full.path = folder / draft.full.path.name
        snapshot = Snapshot(folder, manifest, draft.full)
        with self._lock:
            self._snapshots[manifest.weight_version] = snapshot
            self._collect()
            if draft.full is not None:
                self._preallocated.prepare(manifest.full.size_bytes)
        return snapshot

    @contextmanager
    def hold(self, weight_version: int) -> Iterator[Snapshot]:
        """Keep a version from being collected meanwhile. Raises WeightsError if it is not here (any more)."""
        with self._lock:
            self._drop_damaged()
            snapshot = self._snapshots.get(weight_version)
            if snapshot is None:
                raise WeightsError(f"{self.root}: has no version {weight_version}")
            self._holders[weight_version] += 1
        try:
            yield snapshot
        finally:
            with self._lock:
                self._holders[weight_version] -= 1
                self._collect()

    def discard(self, weight_version: int) -> None:
        """Drop a version whose bytes are not those of its manifest."""
        with self._lock:
            snapshot = self._snapshots.pop(weight_version, None)
            if snapshot is not None:
                _log.warning("%s: is damaged and dropped; it can be fetched again in full", snapshot.folder)
                remove(snapshot.folder)

    def drop_drafts(self) -> None:
        """Remove all drafts, so that the next try starts over."""
        with self._lock:
            for folder in self.root.glob("draft-*"):
                remove(folder)

    def _drop_damaged(self) -> None:
        damaged = [number for number, snapshot in self._snapshots.items() if not _is_there(snapshot)]
        for weight_version in damaged:
            self.discard(weight_version)

    def _collect(self) -> None:
        for weight_version in sorted(self._snapshots)[: -self._keep]:
            if self._holders[weight_version] == 0:
                snapshot = self._snapshots.pop(weight_version)
                # Out of sight in one step, so that no reader sees a version that is half there.
                doomed = self.root / f"draft-{weight_version:06d}-collected"
                snapshot.folder.rename(doomed)
                self._preallocated.put(doomed / f"{FULL}.bin", snapshot.full)
                shutil.rmtree(doomed, ignore_errors=True)

    def _take_preallocated(self) -> DraftFile | None:
        with self._lock:
            return self._preallocated.take()


def open_snapshot(root: Path, weight_version: int) -> Snapshot:
    """Read a version of a folder that another process may be writing to.

    Raises WeightsError if it is not there or damaged.
    """
    folder = root / version_name(weight_version)
    try:
        manifest = parse_manifest((folder / MANIFEST).read_bytes())
        is_whole = _is_whole(folder, manifest)
    except OSError as error:
        raise WeightsError(f"{folder}: is not a weight version: {error.strerror}") from error
    if manifest.weight_version != weight_version or not is_whole:
        raise WeightsError(f"{folder}: its files do not fit its manifest")
    return Snapshot(folder, manifest)


def having(roots: Iterable[Path], weight_version: int, digest: str) -> Iterator[Snapshot]:
    """Find the version in the stores that have it whole with this content."""
    for root in roots:
        with suppress(OSError, WeightsError):  # it has none, or has just collected it
            snapshot = open_snapshot(root, weight_version)
            if snapshot.manifest.digest == digest:
                yield snapshot


def _is_there(snapshot: Snapshot) -> bool:
    """Return whether a version has all its files, of the right sizes."""
    try:
        return _is_whole(snapshot.folder, snapshot.manifest) and (snapshot.folder / MANIFEST).is_file()
    except OSError:
        return False


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    """Return whether all blobs have the right size. Raises OSError if one is missing."""
    return all(
        (folder / f"{name}.bin").stat().st_size == blob.size_bytes for name, blob in blobs(manifest).items()
    )


def blobs(manifest: Manifest) -> dict[str, Blob]:
    """Return the blobs of a version by their names."""
    return {FULL: manifest.full} | ({DELTA: manifest.delta.blob} if manifest.delta else {})


def versions_in(root: Path) -> Iterator[int]:
    """List the versions whose folders are here."""
    return (int(match[1]) for entry in root.iterdir() if (match := _VERSION.match(entry.name)))
