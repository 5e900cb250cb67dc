"""Sources of weight versions without a network, whose every answer a test may change."""

import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rl_agent.weights.download.receive import Announcement, Receiver, ReceiveReport, Upstream
from rl_agent.weights.store.catalog import Catalog, blob_of
from rl_agent.weights.store.store import Snapshot, SnapshotStore
from tests.support.weight_transfers import with_fetch

Lie = Callable[..., Any]
"""Makes a false answer of the answer that a method would give, and of its arguments."""


@dataclass
class StoreSource:
    """Gives what a store has. `lies` change the answers of the methods that they are named after."""

    store: SnapshotStore
    name: str = "source"
    lies: dict[str, Lie] = field(default_factory=dict)
    is_cut_at_once: bool = True
    connections: list["StoreConnection"] = field(default_factory=list)

    def __str__(self) -> str:
        return self.name

    def connection(self) -> "StoreConnection":
        if "connection" in self.lies:
            return self.lies["connection"]()
        self.connections.append(StoreConnection(self))
        return self.connections[-1]


class StoreConnection:
    def __init__(self, source: StoreSource) -> None:
        self._source = source
        self.is_cut_at_once = source.is_cut_at_once
        self.interrupted = threading.Event()

    def _answer(self, method: str, right: Any, *arguments: Any) -> Any:
        lie = self._source.lies.get(method)
        return right if lie is None else lie(right, *arguments)

    def open(self, deadline):
        self._answer("open", None)

    def interrupt(self):
        self.interrupted.set()

    def close(self):
        self._answer("close", None)

    def manifest(self, weight_version, digest, deadline):
        with self._source.store.hold(weight_version) as snapshot:
            return self._answer("manifest", snapshot.manifest)

    def recommend(self, weight_version, blob, wanted, limit, wait_s, deadline):
        return self._answer("recommend", np.flatnonzero(wanted)[:limit].tolist(), wanted)

    def read_piece(self, weight_version, blob, index, start, target, deadline):
        with self._source.store.hold(weight_version) as snapshot:
            size_bytes = blob_of(snapshot.manifest, blob).size_bytes
            content = snapshot.map(blob)[start : min(start + len(target), size_bytes)]
        target[:] = self._answer("read_piece", content, blob, index)


def raising(error: BaseException) -> Lie:
    """A lie that raises an error in place of any answer."""

    def lie(*_, **__):
        raise error

    return lie


def announced_of(store: SnapshotStore, weight_version: int) -> Announcement:
    with store.hold(weight_version) as snapshot:
        return Announcement.of(snapshot.manifest)


@contextmanager
def receiving(root: Path, *, max_deltas: int = 4, **fetch: Any):
    """A function that fetches into an empty store at `root`, and that store and its catalog."""
    settings = with_fetch(max_deltas=max_deltas, **fetch)
    with SnapshotStore(root, keep_versions=9) as store:
        catalog = Catalog(store)
        receiver = Receiver(store, catalog, settings)

        def receive(
            announcement: Announcement,
            *sources: Any,
            timeout_s: float = 30.0,
            stop: threading.Event | None = None,
        ) -> tuple[Snapshot, ReceiveReport]:
            return receiver.receive(
                announcement, [Upstream(sources)], timeout_s=timeout_s, stop=stop or threading.Event()
            )

        yield receive, store, catalog
