"""Reads pieces from another store of this host: a trainer's, beside whose GPUs an engine runs.

Unlike what a neighbour has (`host_dedup`), they are copied. A trainer writes each version into the memory of
one that nobody uses any more, and whoever keeps a link to it would make it take new memory every time.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.format.manifest import Manifest
from rl_agent.weights.format.pieces import Bits
from rl_agent.weights.store.mapped_file import is_memory
from rl_agent.weights.store.store import Snapshot, open_snapshot


def having(roots: Iterable[Path], weight_version: int, digest: str) -> Iterator[Snapshot]:
    """Find the version in the stores of this user that have it whole with this content."""
    for root in roots:
        with suppress(OSError, WeightsError):  # it has none, or has just collected it
            if root.stat().st_uid != os.getuid():  # another user's may be no files, but pipes to wait for
                continue
            snapshot = open_snapshot(root, weight_version)
            if snapshot.manifest.digest == digest:
                yield snapshot


@dataclass(frozen=True, slots=True)
class FolderSource:
    """The folder of a store, which may collect a version meanwhile; what is open stays as it was."""

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    def connection(self) -> "FolderConnection":
        return FolderConnection(self.root)


class FolderConnection:
    """A connection that raises WeightsError or OSError where a version is not there any more."""

    is_cut_at_once = False

    def __init__(self, root: Path) -> None:
        self._root = root
        self._descriptors: dict[tuple[int, str], int] = {}

    def open(self, deadline: Deadline) -> None:
        """Check that the files lie in memory; each is opened when it is asked for."""
        with suppress(OSError):  # it is gone: to be said when it is asked for something
            self.is_cut_at_once = is_memory(self._root)

    def interrupt(self) -> None:
        """Do nothing: memory answers at once, and a hung disk or network cannot be interrupted."""

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def manifest(self, weight_version: int, digest: str | None, deadline: Deadline) -> Manifest:
        """Return the manifest without its delta: to copy the version is faster than to decode it."""
        manifest = open_snapshot(self._root, weight_version).manifest
        if digest is not None and manifest.digest != digest:
            raise WeightsError(f"{self._root}: version {weight_version} has another content")
        return manifest.without_delta()

    def recommend(
        self, weight_version: int, blob: str, bits: Bits, limit: int, wait_s: float, deadline: Deadline
    ) -> list[int]:
        return [int(index) for index in np.flatnonzero(bits)[:limit]]

    def read_piece(
        self, weight_version: int, blob: str, index: int, start: int, target: memoryview, deadline: Deadline
    ) -> None:
        descriptor = self._descriptor(weight_version, blob)
        while target:
            count = os.preadv(descriptor, [target], start)
            if not count:
                raise WeightsError(f"{self._root}: version {weight_version} ends at byte {start}")
            start, target = start + count, target[count:]

    def _descriptor(self, weight_version: int, blob: str) -> int:
        key = (weight_version, blob)
        if key not in self._descriptors:
            path = open_snapshot(self._root, weight_version).path(blob)
            self._descriptors[key] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._descriptors[key]
