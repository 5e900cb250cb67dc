"""Transfers pieces by Mooncake's engine: over RDMA where the network has it, else over its own TCP.

    receiver  asks what there is, and where it lies, over the authenticated connection of `source_tcp`
    engine    reads the bytes out of the sender's memory
    receiver  verifies them like any others; what the engine cannot give comes over the connection; so
              does all of it for a while after a transfer that failed or took too long

The engine knows no tokens: whoever reaches its ports can read, and write to, what was registered. So it is
for networks that one trusts, and the sender registers a private mapping of the files: what others write to it
reaches no store, and no receiver takes it. Versions that are still being fetched are not registered.

The package is `mooncake-transfer-engine-non-cuda` on PyPI (or `mooncake-transfer-engine` with CUDA); it links
libibverbs, libnl-3, libnl-route-3 and libnuma of the system, also where it uses TCP alone.
"""

import ctypes
import logging
import mmap
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.pairs.pairs import MOVE_S, WaitLimit
from rl_agent.weights.sources.cooldown import COOLDOWN_S, Cooldown
from rl_agent.weights.sources.source_tcp import RemoteMemory, TcpConnection, TcpSource

Protocol = Literal["tcp", "rdma"]
_log = logging.getLogger(__name__)


class TransferEngine:
    """Mooncake's engine, one per process. `host` is the address at which others reach it."""

    def __init__(self, host: str, protocol: Protocol = "tcp") -> None:
        """Raises WeightsError if there is no engine, or it does not start."""
        try:
            from mooncake.engine import TransferEngine as Engine
        except ImportError as error:
            raise WeightsError(f"mooncake cannot be imported: {error}") from error
        self._engine: Any = Engine()
        if self._engine.initialize(host, "P2PHANDSHAKE", protocol, "") != 0:
            raise WeightsError(f"mooncake does not start on {host} with {protocol}")
        self.session = f"{host}:{self._engine.get_rpc_port()}"
        self._retired: list[bytearray] = []
        self.cooldown = Cooldown()
        """Sources from which it could not read."""

    def register(self, memory: bytearray | mmap.mmap) -> int:
        """Register memory for transfers; returns its address."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        if self._engine.register_memory(address, len(memory)) != 0:
            raise WeightsError(f"mooncake does not take {len(memory)} bytes of memory")
        return address

    def unregister(self, address: int) -> None:
        self._engine.unregister_memory(address)

    def read(self, place: RemoteMemory, start: int, address: int, size_bytes: int) -> bool:
        """Read bytes; returns whether they came. If not, some may still come later."""
        return bool(
            self._engine.transfer_sync_read(place.session, address, place.address + start, size_bytes) == 0
        )

    def retire(self, buffer: bytearray) -> None:
        """Keep this memory from any further use: a transfer that failed may still write to it."""
        self._retired.append(buffer)


class RegisteredBlobs:
    """The memory of a sender's blobs. A `WeightServer` takes it as its `memory`, and closes it."""

    def __init__(self, engine: TransferEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._registered: dict[tuple[int, str], tuple[mmap.mmap, int]] = {}

    def place(self, weight_version: int, blob: str, descriptor: int, here: Collection[int]) -> RemoteMemory:
        """Return where a complete blob can be read; drops blobs of versions that are not `here` any more."""
        with self._lock:
            self._keep(here)
            key = (weight_version, blob)
            if key not in self._registered:
                memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
                self._registered[key] = (memory, self._engine.register(memory))
            return RemoteMemory(self._engine.session, self._registered[key][1])

    def close(self) -> None:
        with self._lock:
            self._keep(())

    def _keep(self, versions: Collection[int]) -> None:
        for key in [key for key in self._registered if key[0] not in versions]:
            _, address = self._registered.pop(key)
            self._engine.unregister(address)


@dataclass(frozen=True, slots=True)
class MooncakeSource:
    """A weight server whose bytes are read by the engine, where it has registered them."""

    tcp: TcpSource
    engine: TransferEngine

    def __str__(self) -> str:
        return f"mooncake {self.tcp}"

    def connection(self) -> "MooncakeConnection":
        return MooncakeConnection(self)


class MooncakeConnection(TcpConnection):
    """A connection whose reads may still write after they were given up."""

    is_cut_at_once = False

    def __init__(self, source: MooncakeSource) -> None:
        super().__init__(source.tcp)
        self._tcp = source.tcp
        self._engine = source.engine
        self._places: dict[tuple[int, str], RemoteMemory | None] = {}
        self._buffer: bytearray | None = None
        self._address = 0

    def close(self) -> None:
        super().close()
        if self._buffer is not None:
            self._engine.unregister(self._address)
            self._buffer = None

    def read_piece(
        self, weight_version: int, blob: str, index: int, start: int, target: memoryview, deadline: Deadline
    ) -> None:
        key = (weight_version, blob)
        if key not in self._places:
            self._places[key] = self._ask_place(weight_version, blob, deadline)
        place = self._places[key]
        if place is None or str(self._tcp) in self._engine.cooldown:
            super().read_piece(weight_version, blob, index, start, target, deadline)
            return
        buffer = self._registered(len(target))
        try:
            self._transfer(place, start, len(target), deadline)
        except OSError as error:
            self._engine.retire(buffer)
            self._buffer = None
            if not self._is_interrupted:
                _log.warning(
                    "%s: uses TCP for %g s, because mooncake fails: %s", self._tcp, COOLDOWN_S, error
                )
                self._engine.cooldown.add(str(self._tcp))
            raise
        target[:] = memoryview(buffer)[: len(target)]

    def _transfer(self, place: RemoteMemory, start: int, size_bytes: int, deadline: Deadline) -> None:
        """Read in a thread: the engine knows no deadline, and waits for a sender that sleeps."""
        done = threading.Event()
        came: list[bool] = []

        def read(address: int) -> None:
            try:
                came.append(self._engine.read(place, start, address, size_bytes))
            finally:
                done.set()

        threading.Thread(target=read, args=(self._address,), name="mooncake", daemon=True).start()
        WaitLimit(deadline.sooner(MOVE_S), lambda: self._is_interrupted).wait(done.is_set)
        if came != [True]:
            raise ConnectionResetError("mooncake: the transfer failed")

    def _ask_place(self, weight_version: int, blob: str, deadline: Deadline) -> RemoteMemory | None:
        try:
            return self.place(weight_version, blob, deadline)
        except WeightsError:  # it has no engine, or has not all of the blob yet
            return None

    def _registered(self, size_bytes: int) -> bytearray:
        if self._buffer is None or len(self._buffer) < size_bytes:
            if self._buffer is not None:
                self._engine.unregister(self._address)
            self._buffer = bytearray(size_bytes)
            self._address = self._engine.register(self._buffer)
        return self._buffer
