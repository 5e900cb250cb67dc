"""Witnesses of a receiver while a version comes: an engine in its folder, and another receiver."""

import threading
from contextlib import suppress
from pathlib import Path

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.format.checksums import digest
from rl_agent.weights.format.manifest import Manifest
from rl_agent.weights.format.pieces import PieceSet
from rl_agent.weights.sources.source_tcp import TcpConnection
from rl_agent.weights.store.catalog import blob_of
from rl_agent.weights.store.store import DELTA, FULL, open_snapshot
from tests.support.weight_transfers import Host


class Engine:
    """Opens the version in its folder as soon as it is there, as often as it can, and compares every byte."""

    def __init__(self, root: Path, weight_version: int, content: bytes) -> None:
        self._root = root
        self._version = weight_version
        self._content = content
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._wrong = 0
        self.looks = 0

    def __enter__(self) -> "Engine":
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            assert not self._wrong, "an engine could open a version that was not right"

    def _look(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stop.is_set()
            with suppress(WeightsError):  # there is none yet
                is_right = open_snapshot(self._root, self._version).map(FULL) == self._content
                self.looks += 1
                self._wrong += not is_right
            self._stop.wait(0.002)


class Witness:
    """Takes from a receiver all it gives of the version, while it gives it, and checks every byte."""

    def __init__(self, receiver: Host, manifest: Manifest) -> None:
        self._receiver = receiver
        self._version = manifest.weight_version
        self._blobs = {name: blob_of(manifest, name) for name in (DELTA, FULL)}
        self._had = {name: PieceSet(len(blob.digests)) for name, blob in self._blobs.items()}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._take)
        self.wrong: list[tuple[str, int]] = []
        self.pieces = 0

    def __enter__(self) -> "Witness":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def see_all(self) -> None:
        """Look once the receiver has it all."""
        self._thread.join(30)
        assert not self._thread.is_alive(), "the receiver does not give on what it has"

    def _take(self) -> None:
        while not self._is_over:
            connection = self._receiver.source.connection()
            try:
                connection.open(Deadline.after(5))
                while not self._is_over:
                    for name in self._had:
                        with suppress(WeightsError):  # it has nothing of this yet
                            self._take_some(connection, name)
            except OSError:
                self._stop.wait(0.01)  # it is stopping, or did not hear of us for too long
            finally:
                connection.close()

    @property
    def _is_over(self) -> bool:
        return self._stop.is_set() or self._had[FULL].is_complete

    def _take_some(self, connection: TcpConnection, name: str) -> None:
        had, blob = self._had[name], self._blobs[name]
        if had.is_complete:
            return
        missing = had.missing()
        proposed = connection.recommend(self._version, name, missing, 4, 0.05, Deadline.after(5))
        unasked = int(missing.nonzero()[0][-1])  # as one who takes what was not proposed
        for index in [*proposed, unasked]:
            start, end = blob.range_of(index)
            content = memoryview(bytearray(end - start))
            connection.read_piece(self._version, name, index, start, content, Deadline.after(5))
            if digest(content) != blob.digests[index]:
                self.wrong.append((name, index))
            had.add(index)
            self.pieces += 1
