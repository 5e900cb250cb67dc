"""Lists what this host can give to others: stored versions, and verified pieces of one in transfer."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rl_agent.errors import WeightsError
from rl_agent.weights.format.manifest import Blob, Manifest
from rl_agent.weights.format.pieces import PieceSet
from rl_agent.weights.store.store import SnapshotStore, blobs

BlobName = str


@dataclass(frozen=True, slots=True)
class Offer:
    """A blob that is open for reading, and which of its pieces are here."""

    blob: Blob
    pieces: PieceSet
    descriptor: int
    view: memoryview | None
    """The bytes of a version that is complete; None where there is no mapping."""


class Catalog:
    """The blobs that this host offers. Thread-safe; an open blob stays readable if it is collected."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._partial: dict[tuple[int, BlobName], tuple[Manifest, Path, PieceSet]] = {}
        self._complete: dict[tuple[int, BlobName], PieceSet] = {}

    @contextmanager
    def partial(self, manifest: Manifest, blob: BlobName, path: Path, pieces: PieceSet) -> Iterator[None]:
        """Offer a blob while it is being fetched."""
        key = (manifest.weight_version, blob)
        with self._lock:
            self._partial[key] = (manifest, path, pieces)
        try:
            yield
        finally:
            with self._lock:
                del self._partial[key]

    @property
    def versions(self) -> set[int]:
        """The versions of which this host has at least a part."""
        with self._lock:
            partial = {weight_version for weight_version, _ in self._partial}
        return partial.union(self._store.versions)

    def manifest(self, weight_version: int) -> Manifest:
        """Return a version's manifest. Raises WeightsError if nothing of this version is here."""
        with suppress(WeightsError), self._store.hold(weight_version) as snapshot:
            return snapshot.manifest
        with self._lock:
            for manifest, _, _ in self._partial.values():
                if manifest.weight_version == weight_version:
                    return manifest
        raise WeightsError(f"has no version {weight_version}")

    @contextmanager
    def open(self, weight_version: int, name: BlobName) -> Iterator[Offer]:
        """Open a blob for reading. Raises WeightsError if it is not here."""
        path, blob, pieces, view = self._find(weight_version, name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise WeightsError(f"has no {name} blob of version {weight_version} any more") from error
        try:
            yield Offer(blob, pieces, descriptor, view)
        finally:
            os.close(descriptor)

    def _find(self, weight_version: int, name: BlobName) -> tuple[Path, Blob, PieceSet, memoryview | None]:
        if weight_version in self._store.versions:
            with self._store.hold(weight_version) as snapshot:
                blob = blob_of(snapshot.manifest, name)
                view = snapshot.view(name) if blob.size_bytes else None
                return snapshot.path(name), blob, self._complete_set(weight_version, name, blob), view
        with self._lock:
            if (weight_version, name) in self._partial:
                manifest, path, pieces = self._partial[weight_version, name]
                return path, blob_of(manifest, name), pieces, None
        raise WeightsError(f"has no {name} blob of version {weight_version}")

    def _complete_set(self, weight_version: int, name: BlobName, blob: Blob) -> PieceSet:
        here = set(self._store.versions)
        with self._lock:
            self._complete = {key: pieces for key, pieces in self._complete.items() if key[0] in here}
            complete = PieceSet(len(blob.digests), is_complete=True)
            return self._complete.setdefault((weight_version, name), complete)


def blob_of(manifest: Manifest, name: BlobName) -> Blob:
    """Return a blob of a version. Raises WeightsError if the version has no such blob."""
    if (blob := blobs(manifest).get(name)) is not None:
        return blob
    raise WeightsError(f"version {manifest.weight_version} has no {name} blob")
