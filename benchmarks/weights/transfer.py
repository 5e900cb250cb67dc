"""A full transfer of weights over loopback, checksums on, against what the machine can do at most.

    python benchmarks/weights/transfer.py [--gb 4] [--streams 4] [--repeats 3]

Sender and receiver are processes of their own; versions lie in /dev/shm, four times --gb. In the same run:

    memcpy         one thread copies as many bytes from one file of /dev/shm to another
    iperf3         as many streams for five seconds, where iperf3 is installed
    plain sockets  as many streams, sendall to recv_into in the same pieces, nothing checked, nothing kept
    plain, digest  the same with BLAKE3 of every piece, into the same few buffers: no less can a transfer do
    first          the real thing: manifest, pieces, BLAKE3 of every byte, published at the end
    transfer       the same, into the memory of a collected version, as with all but the first few
    mooncake       the same as `transfer`, the bytes by Mooncake's engine over TCP, where it can be imported
    nccl, gloo     the same, the bytes over pairs, with --pairs nccl (--gpus SENDER,RECEIVER) or --pairs gloo

Claim: at least 80 % of iperf3, or of plain sockets where there is no iperf3. `processor`: time of both
processes, user and system, which other work on the machine changes less than the rates; all cores divided by
it are what the machine could do if nothing ever waited. "cubic": with that congestion control, which the
transfer chooses within a host, in place of the system's.
"""

import json
import logging
import mmap
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from msgspec import structs

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.config.sections.weights import WeightsConfig
from rl_agent.errors import WeightsError
from rl_agent.system.flag_parser import FlagParser
from rl_agent.weights.download.receive import Announcement, Receiver, Upstream
from rl_agent.weights.format.checksums import digest
from rl_agent.weights.format.manifest import Manifest
from rl_agent.weights.pairs.mooncake import TransferEngine
from rl_agent.weights.pairs.pairs import Pairing
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.server.server import ServerSettings
from rl_agent.weights.sources.source_tcp import TcpSource
from rl_agent.weights.store.catalog import Catalog, Offer
from rl_agent.weights.store.store import FULL, SnapshotStore
from rl_agent.weights.transports import PieceTransport, open_transport
from tests.support.gloo_pairs import GlooPairs
from tests.support.weight_transfers import StateDict, weights_config

TOKEN = b"benchmark"
TENSORS = 64
LIMIT_S = 120.0
WARM_UP = 4
"""Versions until every one goes into memory that is there and mapped."""


def publish_settings(piece_bytes: int, threads: int) -> WeightsConfig:
    return weights_config(piece_bytes, delta="never", threads=threads, check_finite=False)


def publish_random(root: Path, size_bytes: int, piece_bytes: int) -> Announcement:
    random = torch.from_numpy(np.random.default_rng(0).integers(-(2**15), 2**15, 2**22, np.int16))
    values = size_bytes // 2 // TENSORS
    tensor = random.repeat(-(-values // len(random)))[:values].view(torch.bfloat16)
    with SnapshotStore(root, keep_versions=1) as store:
        source = StateDict({f"layer.{index}": tensor for index in range(TENSORS)}, {})
        snapshot = Publisher(store, publish_settings(piece_bytes, threads=2)).publish(1, source)
        return Announcement.of(snapshot.manifest)


class EveryVersion(Catalog):
    """Gives its one version under any number, as if it was published again and again."""

    def manifest(self, weight_version: int) -> Manifest:
        return structs.replace(super().manifest(1), weight_version=weight_version)

    @contextmanager
    def open(self, weight_version: int, name: str) -> Iterator[Offer]:
        with super().open(1, name) as offer:
            yield offer


def serve(root: Path, streams: int, pairs: Literal["nccl", "gloo"] | None, pipe: Connection) -> None:
    server = ServerSettings(("127.0.0.1",), 0, 2 * streams, 30.0, 60.0, bytes_per_s=None)
    transport = replace(transport_of(pairs), engine=transfer_engine())
    with (
        SnapshotStore(root, keep_versions=1) as store,
        transport.server(EveryVersion(store), TOKEN, server) as running,
    ):
        pipe.send(running.address)
        pipe.recv()


def transport_of(pairs: Literal["nccl", "gloo"] | None) -> PieceTransport:
    return (
        PieceTransport(pairing=Pairing(GlooPairs()))
        if pairs == "gloo"
        else open_transport(pairs or "tcp", "127.0.0.1")
    )


@cache
def transfer_engine() -> TransferEngine | None:
    """Mooncake's, one per process; None where it cannot be imported."""
    try:
        return TransferEngine("127.0.0.1")
    except WeightsError:
        return None


def serve_plain(path: Path, piece_bytes: int, pipe: Connection) -> None:
    """Whatever pieces are asked for, eight bytes an index."""
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname())
    with path.open("rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def answer(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        while request := connection.recv(8, socket.MSG_WAITALL):
            start = int.from_bytes(request, "little") * piece_bytes
            connection.sendall(content[start : start + piece_bytes])

    def accept() -> None:
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    pipe.recv()


@dataclass(frozen=True)
class Peer:
    """A process that sends."""

    address: tuple[str, int]
    pid: int


@contextmanager
def process(target: Callable[..., None], *arguments: object) -> Iterator[Peer]:
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    child = context.Process(target=target, args=(*arguments, far), daemon=True)
    child.start()
    try:
        yield Peer(near.recv(), child.pid or 0)
    finally:
        near.send(None)
        child.join(30)


def processor_s(peer: Peer) -> float:
    """Processor time of this process and the other so far, user and system."""
    fields = Path(f"/proc/{peer.pid}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


class Host:
    """A receiver with its store, which brings one version after the other."""

    def __init__(self, root: Path, digest: str, streams: int) -> None:
        self.store = SnapshotStore(root, keep_versions=1)
        self._digest = digest
        settings = weights_config(
            streams_per_source=streams, pieces_at_once=8, piece_timeout_s=30.0, max_deltas=0
        )
        self._receiver = Receiver(self.store, Catalog(self.store), settings)

    def transfer(self, address: tuple[str, int], transport: PieceTransport = PieceTransport()) -> float:  # noqa: B008 - is frozen
        source = transport.source(TcpSource(*address, TOKEN, 30.0))
        newest = self.store.newest
        announced = Announcement(newest.weight_version + 1 if newest else 1, self._digest)
        began = time.perf_counter()
        self._receiver.receive(announced, [Upstream([source])], timeout_s=LIMIT_S, stop=threading.Event())
        took_s = time.perf_counter() - began
        if transport.pairing is not None and transport.pairing.is_cooling_down(str(source)):
            raise SystemExit(f"{source}: the pair failed, and TCP was measured instead; the log says why")
        return took_s


def transfer_plain(
    address: tuple[str, int], size_bytes: int, piece_bytes: int, streams: int, *, is_digested: bool = False
) -> float:
    """The receiving side of `serve_plain`, into memory that is there already."""
    buffers = [memoryview(bytearray(piece_bytes)) for _ in range(streams)]
    pieces = iter(range(-(-size_bytes // piece_bytes)))
    lock = threading.Lock()

    def take(buffer: memoryview) -> None:
        with socket.create_connection(address) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
            while True:
                with lock:
                    index = next(pieces, None)
                if index is None:
                    return
                connection.sendall(index.to_bytes(8, "little"))
                content = buffer[: min(piece_bytes, size_bytes - index * piece_bytes)]
                left = len(content)
                while left:
                    left -= connection.recv_into(content[-left:])
                if is_digested:
                    digest(content)

    threads = [threading.Thread(target=take, args=(buffer,)) for buffer in buffers]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def copy(path: Path, target: Path) -> float:
    size_bytes = path.stat().st_size
    with path.open("rb") as source_file, target.open("w+b") as target_file:
        os.posix_fallocate(target_file.fileno(), 0, size_bytes)
        with (
            mmap.mmap(source_file.fileno(), 0, access=mmap.ACCESS_READ) as origin,
            mmap.mmap(target_file.fileno(), 0) as copied,
        ):
            began = time.perf_counter()
            copied[:] = origin
            took_s = time.perf_counter() - began
    target.unlink()
    return took_s


def iperf3(streams: int, congestion: Sequence[str]) -> tuple[float, float] | None:
    """Bytes per second that arrived, and processor seconds per byte; None if the program is not installed."""
    if shutil.which("iperf3") is None:
        return None
    for _ in range(3):  # on a busy machine it now and then breaks a test off
        result = run_iperf3(streams, congestion)
        if "sum_received" in result.get("end", {}):
            received, used = result["end"]["sum_received"], result["end"]["cpu_utilization_percent"]
            rate = received["bits_per_second"] / 8
            return rate, (used["host_total"] + used["remote_total"]) / 100 / rate
    raise SystemExit(f"iperf3: {result.get('error', result)}")


def run_iperf3(streams: int, congestion: Sequence[str]) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    server = subprocess.Popen(
        ["iperf3", "-s", "-1", "--forceflush", "-p", port],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        for line in server.stdout or ():
            if "listening" in line:
                break
        command = ["iperf3", "-c", "127.0.0.1", "-p", port, "-P", str(streams), "-t", "5", "-J"]
        result = subprocess.run([*command, *congestion], capture_output=True, timeout=60)
        return json.loads(result.stdout)
    finally:
        server.kill()
        server.communicate()


@dataclass
class Row:
    """A way to move the bytes, and what each time brought."""

    name: str
    run: Callable[[], float] = float
    """Moves all, and returns the seconds."""
    peer: Peer | None = None
    rates: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    """Seconds a byte."""

    def measure(self, size_bytes: int) -> None:
        began_s = processor_s(self.peer) if self.peer else 0.0
        self.rates.append(size_bytes / self.run())
        if self.peer:
            self.processor.append((processor_s(self.peer) - began_s) / size_bytes)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def line(self, limit: "Row") -> str:
        least, most = min(self.rates) / 1e9, max(self.rates) / 1e9
        text = f"{self.name:14s} {self.rate / 1e9:6.2f} GB/s ({least:.2f}, {most:.2f})"
        text += f"  {100 * self.rate / limit.rate:4.0f} % of {limit.name}"
        if self.processor:
            text += f", processor {1e9 * statistics.median(self.processor):.2f} s/GB"
        return text


@dataclass
class Iperf3Row(Row):
    """A row that measures for some seconds rather than for some bytes."""

    streams: int = 1
    options: Sequence[str] = ()

    def measure(self, size_bytes: int) -> None:
        measured = iperf3(self.streams, self.options)
        if measured is not None:
            self.rates.append(measured[0])
            self.processor.append(measured[1])


def first_transfer(root: Path, digest_of_all: str, streams: int, address: tuple[str, int]) -> float:
    host = Host(root, digest_of_all, streams)
    try:
        return host.transfer(address)
    finally:
        host.store.close()
        shutil.rmtree(root)


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=4.0)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--piece-mib", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pairs", choices=("nccl", "gloo"))
    parser.add_argument("--gpus", default="0,1", help="of the sender and of the receiver, for --pairs nccl")
    args = parser.parse_args()
    logging.basicConfig()
    sender_gpu, receiver_gpu = args.gpus.split(",")
    size_bytes, piece_bytes, streams = int(args.gb * 1e9), args.piece_mib * 2**20, args.streams
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        sender_root, receiver_root = Path(folder, "sender"), Path(folder, "receiver")
        announced = publish_random(sender_root, size_bytes, piece_bytes)
        file = sender_root / "version-000001" / f"{FULL}.bin"
        size_bytes = file.stat().st_size
        os.environ["CUDA_VISIBLE_DEVICES"] = sender_gpu  # seen by the processes that are started now
        with (
            process(serve, sender_root, streams, args.pairs) as real,
            process(serve_plain, file, piece_bytes) as plain,
        ):
            os.environ["CUDA_VISIBLE_DEVICES"] = receiver_gpu
            host = Host(receiver_root, announced.digest, streams)
            for _ in range(WARM_UP):
                host.transfer(real.address)
            rows = [
                Row("memcpy", lambda: copy(file, Path(folder, "copy"))),
                Iperf3Row("iperf3", streams=streams),
                Iperf3Row("iperf3 cubic", streams=streams, options=("-C", "cubic")),
                Row(
                    "plain sockets",
                    lambda: transfer_plain(plain.address, size_bytes, piece_bytes, streams),
                    plain,
                ),
                Row(
                    "plain, digest",
                    lambda: transfer_plain(plain.address, size_bytes, piece_bytes, streams, is_digested=True),
                    plain,
                ),
                Row(
                    "first",
                    lambda: first_transfer(Path(folder, "first"), announced.digest, streams, real.address),
                    real,
                ),
                Row("transfer", lambda: host.transfer(real.address), real),
            ]
            engine = transfer_engine()
            if engine:
                rows.append(
                    Row("mooncake", lambda: host.transfer(real.address, PieceTransport(engine=engine)), real)
                )
            if args.pairs:
                pairs = transport_of(args.pairs)
                rows.append(Row(args.pairs, lambda: host.transfer(real.address, pairs), real))
            for _ in range(args.repeats):  # in turn, so that other work on the machine meets all alike
                for row in rows:
                    row.measure(size_bytes)
            host.store.close()
    by_name = {row.name: row for row in rows if row.rates}
    limit = by_name.get("iperf3", by_name["plain sockets"])
    cores = len(os.sched_getaffinity(0))
    print(
        f"{size_bytes / 1e9:.2f} GB, {streams} streams, pieces of {args.piece_mib} MiB, {cores} cores;"
        f" median of {args.repeats} (least, most)"
    )
    for row in by_name.values():
        print(row.line(limit))
    share = by_name["transfer"].rate / limit.rate
    print(
        f"transfer at {100 * share:.0f} % of {limit.name}; wanted 80 %: {'met' if share >= 0.8 else 'missed'}"
    )


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
