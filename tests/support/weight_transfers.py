"""Weight servers and receivers on the loopback device, and versions made of tensors in memory."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_agent.config.sections.weights import WeightsConfig
from rl_agent.paths import PROJECT_ROOT
from rl_agent.pool.schemas import WeightsOffer
from rl_agent.pool.settings import load_weights
from rl_agent.weights.download.receive import Announcement, Receiver
from rl_agent.weights.download.source_order import ReceiveReport, Upstream
from rl_agent.weights.pairs.pairs import PairMaker
from rl_agent.weights.server.server import ServerSettings, WeightServer
from rl_agent.weights.sources.source import Source
from rl_agent.weights.sources.source_tcp import TcpSource
from rl_agent.weights.store.catalog import Catalog
from rl_agent.weights.store.store import Snapshot, SnapshotStore
from rl_agent.weights.store.tensor_sources import StateDict as StateDict

TOKEN = b"a token for tests"


class WeightsOfAnyPieces(WeightsConfig):
    """Pieces may be smaller than the configuration allows, so that small versions have several."""

    most_piece_bytes: int

    @property
    def piece_bytes(self) -> int:
        return self.most_piece_bytes


def weights_config(most_piece_bytes: int = 2**20, **changes: Any) -> WeightsConfig:
    """The default configuration with these changes."""
    values = load_weights([]).model_dump() | {"threads": 2, "most_piece_bytes": most_piece_bytes}
    return WeightsOfAnyPieces.model_validate(values | changes)


FETCH = weights_config(
    streams_per_source=2,
    pieces_at_once=2,
    piece_timeout_s=5.0,
    retries=3,
)
NO_MANAGER = "http://127.0.0.1:1"
"""The address of a worker's manager that gives nothing."""
SERVER = ServerSettings(
    hosts=("127.0.0.1",),
    port=0,
    max_connections=64,
    idle_timeout_s=5.0,
    piece_timeout_s=10.0,
    bytes_per_s=None,
)


@dataclass
class Host:
    """A store that others can fetch from, and that can fetch."""

    store: SnapshotStore
    catalog: Catalog
    server: WeightServer
    receiver: Receiver

    @property
    def source(self) -> TcpSource:
        return source_at(self.server.address)


def source_at(address: tuple[str, int], token: bytes = TOKEN, idle_timeout_s: float = 5.0) -> TcpSource:
    return TcpSource(*address, token, idle_timeout_s)


@contextmanager
def host(
    store: SnapshotStore,
    *,
    server: ServerSettings = SERVER,
    fetch: WeightsConfig = FETCH,
    max_deltas: int = 4,
    pairs: PairMaker | None = None,
) -> Iterator[Host]:
    catalog = Catalog(store)
    receiver = Receiver(store, catalog, fetch.model_copy(update={"max_deltas": max_deltas}))
    with store, WeightServer(catalog, TOKEN, server, pairs=pairs) as running:
        yield Host(store, catalog, running, receiver)


def new_host(root: Path, **options: Any) -> contextlib.AbstractContextManager[Host]:
    return host(SnapshotStore(root, keep_versions=9), **options)


def announced(snapshot: Snapshot | None) -> Announcement:
    assert snapshot is not None, "nothing is published"
    return Announcement.of(snapshot.manifest)


def offer_of(version: Announcement, *sources: str) -> WeightsOffer:
    """Return what a pool tells a worker of a version."""
    return WeightsOffer(
        weight_version=version.weight_version,
        digest=version.digest,
        delta_digest=version.delta_digest,
        transfer_token=TOKEN.decode(),
        sources=sources,
    )


def hold(running: Host, weight_version: int) -> Snapshot:
    with running.store.hold(weight_version) as snapshot:
        return snapshot


def receive(
    receiving: Host,
    announcement: Announcement,
    sources: Sequence[Source],
    *,
    peers: Sequence[Source] = (),
    fallbacks: Sequence[Source] = (),
    timeout_s: float = 30.0,
    stop: threading.Event | None = None,
) -> tuple[Snapshot, ReceiveReport]:
    upstreams = [Upstream(sources, peers), *([Upstream(fallbacks)] if fallbacks else [])]
    return receiving.receiver.receive(
        announcement, upstreams, timeout_s=timeout_s, stop=stop or threading.Event()
    )


@contextmanager
def capped_copy(root: Path, sender: Host, *, bytes_per_s: float) -> Iterator[Host]:
    """Another host with the sender's newest version, whose link carries only so much."""
    with new_host(root, server=replace(SERVER, bytes_per_s=bytes_per_s)) as slow:
        receive(slow, announced(sender.store.newest), [sender.source])
        yield slow


def with_fetch(**changes: Any) -> WeightsConfig:
    return FETCH.model_copy(update=changes)


@contextmanager
def running_program(program: str, *words: object) -> "Iterator[subprocess.Popen[str]]":
    """Run a program with pipes for its input and output until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT_ROOT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
