"""Weight servers and receivers on the loopback device, and a link between them that can be made to fail."""

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rl_agent.weights.fetch import FetchSettings, Source
from rl_agent.weights.pairs import PairMaker
from rl_agent.weights.receive import Announcement, Receiver, ReceiveReport, ReceiveSettings, Upstream
from rl_agent.weights.server import ServerSettings, WeightServer
from rl_agent.weights.shelf import Shelf
from rl_agent.weights.source_tcp import TcpSource
from rl_agent.weights.store import Snapshot, SnapshotStore

TOKEN = b"a token for tests"
FETCH = FetchSettings(
    streams_per_source=2,
    pieces_at_once=2,
    piece_timeout_s=5.0,
    retries=3,
    retry_pause_s=0.01,
    max_wrong_pieces=3,
    stop_poll_s=0.05,
)
NO_MANAGER = "http://127.0.0.1:1"
"""Of a worker whose manager gives nothing."""
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
    shelf: Shelf
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
    fetch: FetchSettings = FETCH,
    max_deltas: int = 4,
    pairs: PairMaker | None = None,
) -> Iterator[Host]:
    shelf = Shelf(store)
    receiver = Receiver(store, shelf, ReceiveSettings(fetch, threads=2, max_deltas=max_deltas))
    with store, WeightServer(shelf, TOKEN, server, pairs=pairs) as running:
        yield Host(store, shelf, running, receiver)


def new_host(root: Path, **options: object) -> contextlib.AbstractContextManager[Host]:
    return host(SnapshotStore(root, keep_versions=9), **options)


def announced(snapshot: Snapshot) -> Announcement:
    return Announcement(snapshot.weight_version, snapshot.manifest.digest)


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


def with_fetch(**changes: object) -> FetchSettings:
    return replace(FETCH, **changes)


Fault = Callable[[socket.socket, bytes, int], bytes | None]
"""Of the receiver's socket, bytes from the sender and how many passed before: what to pass on; None: cut."""


class Link:
    """A TCP proxy: passes bytes on, those from the sender through `fault`, counted over all connections."""

    def __init__(self, target: tuple[str, int], fault: Fault | None = None) -> None:
        self._target = target
        self._fault = fault
        self._lock = threading.Lock()
        self.passed_bytes = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_closed = False

    @property
    def address(self) -> tuple[str, int]:
        return self._listener.getsockname()

    def __enter__(self) -> "Link":
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Every connection at once; new ones are refused."""
        with self._lock:
            self._is_closed = True
            for connection in (self._listener, *self._sockets):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                receiver, _ = self._listener.accept()
            except OSError:
                return
            try:
                sender = socket.create_connection(self._target)
            except OSError:  # the sender is gone: the receiver is to see that
                receiver.close()
                continue
            with self._lock:
                if self._is_closed:
                    receiver.close()
                    sender.close()
                    return
                self._sockets += [receiver, sender]
            self._start(self._pass, receiver, sender, None)
            self._start(self._pass, sender, receiver, self._fault)

    def _pass(self, origin: socket.socket, target: socket.socket, fault: Fault | None) -> None:
        try:
            while content := origin.recv(2**16):
                if fault is not None:
                    with self._lock:
                        before, self.passed_bytes = self.passed_bytes, self.passed_bytes + len(content)
                    changed = fault(target, content, before)
                    if changed is None:
                        break
                    content = changed
                target.sendall(content)
        except OSError:
            pass
        for connection in (origin, target):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def flip_at(position: int) -> Fault:
    """Change one byte, the one at `position` of all that pass."""

    def fault(_: socket.socket, content: bytes, before: int) -> bytes:
        if before <= position < before + len(content):
            at = position - before
            return content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :]
        return content

    return fault


def flip_often(seed: int, share: float) -> Fault:
    generator = random.Random(seed)

    def fault(_: socket.socket, content: bytes, before: int) -> bytes:
        if len(content) > 100 and generator.random() < share:
            at = generator.randrange(len(content))
            return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        return content

    return fault


def cut_at(position: int) -> Fault:
    """Cut the connection that carries the byte at `position`, in the middle of what it carries."""

    def fault(target: socket.socket, content: bytes, before: int) -> bytes | None:
        if before <= position < before + len(content):
            target.sendall(content[: position - before])
            return None
        return content

    return fault
