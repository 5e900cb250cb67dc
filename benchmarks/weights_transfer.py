"""A full transfer of weights over loopback, checksums on, against what the machine can do at most.

    python benchmarks/weights_transfer.py [--gb 4] [--streams 4] [--repeats 3]

Sender and receiver are processes of their own; the versions lie in /dev/shm, twice --gb. In the same run:

    memcpy         one thread copies as many bytes from one file of /dev/shm to another
    iperf3         as many streams for five seconds, where iperf3 is installed
    plain sockets  as many streams, sendfile to recv_into in the same pieces, nothing checked, nothing kept
    first          the real thing: manifest, pieces, BLAKE3 of every byte, published at the end
    transfer       the same, into the memory of a collected version, as with all but the first few
    mooncake       the same as `transfer`, the bytes by Mooncake's engine over TCP, where it can be imported

Claim: at least 80 % of iperf3, or of plain sockets where there is no iperf3. `processor`: time of both
processes, user and system, which other work on the machine changes less than the rates; all cores divided by
it are what the machine could do if nothing ever waited.
"""

import argparse
import json
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rl_agent.errors import WeightsError
from rl_agent.weights.delta_policy import DeltaSettings
from rl_agent.weights.fetch import FetchSettings
from rl_agent.weights.mooncake import MooncakeSource, RegisteredBlobs, TransferEngine
from rl_agent.weights.publish import Publisher, PublishSettings
from rl_agent.weights.receive import Announcement, Receiver, ReceiveSettings
from rl_agent.weights.server import ServerSettings, WeightServer
from rl_agent.weights.shelf import Shelf
from rl_agent.weights.source_tcp import TcpSource
from rl_agent.weights.sources import StateDict
from rl_agent.weights.store import FULL, SPARE, SnapshotStore, version_name

TOKEN = b"benchmark"
TENSORS = 64
LIMIT_S = 120.0


def settings(piece_bytes: int, threads: int) -> PublishSettings:
    delta = DeltaSettings("never", block_bytes=piece_bytes, link_bytes_per_s=1e9, retry_after=1)
    return PublishSettings(piece_bytes, threads, serving_dtype=None, delta=delta)


def fetch_settings(streams: int) -> FetchSettings:
    return FetchSettings(
        streams_per_source=streams,
        pieces_at_once=8,
        piece_timeout_s=30.0,
        retries=3,
        retry_pause_s=0.1,
        max_wrong_pieces=3,
        stop_poll_s=0.2,
    )


def publish_random(root: Path, size_bytes: int, piece_bytes: int) -> Announcement:
    random = torch.from_numpy(np.random.default_rng(0).integers(-(2**15), 2**15, 2**22, np.int16))
    values = size_bytes // 2 // TENSORS
    tensor = random.repeat(-(-values // len(random)))[:values].view(torch.bfloat16)
    with SnapshotStore(root, keep_versions=1) as store:
        source = StateDict({f"layer.{index}": tensor for index in range(TENSORS)}, {})
        snapshot = Publisher(store, settings(piece_bytes, threads=2)).publish(1, source)
        return Announcement(1, snapshot.manifest.digest)


def serve(root: Path, streams: int, pipe: Connection) -> None:
    server = ServerSettings("127.0.0.1", 0, 2 * streams, 30.0, 60.0, bytes_per_s=None)
    engine = transfer_engine()
    memory = RegisteredBlobs(engine) if engine else None
    with (
        SnapshotStore(root, keep_versions=1) as store,
        WeightServer(Shelf(store), TOKEN, server, memory=memory) as running,
    ):
        pipe.send(running.address)
        pipe.recv()


@cache
def transfer_engine() -> TransferEngine | None:
    """Mooncake's, one a process; None where it cannot be imported."""
    try:
        return TransferEngine("127.0.0.1")
    except WeightsError:
        return None


def serve_plain(path: Path, piece_bytes: int, pipe: Connection) -> None:
    """sendfile of whatever pieces are asked for, eight bytes an index."""
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname())
    descriptor = os.open(path, os.O_RDONLY)
    size_bytes = path.stat().st_size

    def answer(connection: socket.socket) -> None:
        while request := connection.recv(8, socket.MSG_WAITALL):
            start = int.from_bytes(request, "little") * piece_bytes
            end = min(start + piece_bytes, size_bytes)
            while start < end:
                start += os.sendfile(connection.fileno(), descriptor, start, end - start)

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
    """Of this process and the other so far, user and system."""
    fields = Path(f"/proc/{peer.pid}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def transfer(
    root: Path, address: tuple[str, int], announced: Announcement, streams: int, *, by_engine: bool = False
) -> float:
    """The store's own version, if it has one, is collected first."""
    had = root / version_name(1)
    if had.exists():
        (had / f"{FULL}.bin").rename(root / SPARE)
        shutil.rmtree(had)
    with SnapshotStore(root, keep_versions=1) as store:
        receiver = Receiver(
            store, Shelf(store), ReceiveSettings(fetch_settings(streams), threads=2, max_deltas=0)
        )
        tcp, engine = TcpSource(*address, TOKEN, 30.0), transfer_engine()
        source = MooncakeSource(tcp, engine) if by_engine and engine else tcp
        began = time.perf_counter()
        receiver.receive(announced, [source], timeout_s=LIMIT_S, stop=threading.Event())
        return time.perf_counter() - began


def transfer_plain(address: tuple[str, int], size_bytes: int, piece_bytes: int, streams: int) -> float:
    """The receiving side of `serve_plain`, into memory that is there already."""
    buffers = [memoryview(bytearray(piece_bytes)) for _ in range(streams)]
    pieces = iter(range(-(-size_bytes // piece_bytes)))
    lock = threading.Lock()

    def take(buffer: memoryview) -> None:
        with socket.create_connection(address) as connection:
            while True:
                with lock:
                    index = next(pieces, None)
                if index is None:
                    return
                connection.sendall(index.to_bytes(8, "little"))
                left = min(piece_bytes, size_bytes - index * piece_bytes)
                while left:
                    left -= connection.recv_into(buffer[:left])

    threads = [threading.Thread(target=take, args=(buffer,)) for buffer in buffers]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def copy(path: Path, target: Path) -> float:
    size_bytes = path.stat().st_size
    with path.open("rb") as one, target.open("w+b") as other:
        os.posix_fallocate(other.fileno(), 0, size_bytes)
        with (
            mmap.mmap(one.fileno(), 0, access=mmap.ACCESS_READ) as origin,
            mmap.mmap(other.fileno(), 0) as copied,
        ):
            began = time.perf_counter()
            copied[:] = origin
            took_s = time.perf_counter() - began
    target.unlink()
    return took_s


def iperf3(streams: int) -> tuple[float, float] | None:
    """Bytes a second that arrived, and processor seconds a byte; None if the program is not installed."""
    if shutil.which("iperf3") is None:
        return None
    for _ in range(3):  # on a busy machine it now and then breaks a test off
        result = run_iperf3(streams)
        if "sum_received" in result.get("end", {}):
            received, used = result["end"]["sum_received"], result["end"]["cpu_utilization_percent"]
            rate = received["bits_per_second"] / 8
            return rate, (used["host_total"] + used["remote_total"]) / 100 / rate
    raise SystemExit(f"iperf3: {result.get('error', result)}")


def run_iperf3(streams: int) -> dict[str, Any]:
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
        return json.loads(subprocess.run(command, capture_output=True, timeout=60).stdout)
    finally:
        server.kill()
        server.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=4.0)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--piece-mib", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    size_bytes, piece_bytes = int(args.gb * 1e9), args.piece_mib * 2**20
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        sender_root, receiver_root = Path(folder, "sender"), Path(folder, "receiver")
        announced = publish_random(sender_root, size_bytes, piece_bytes)
        file = sender_root / "version-000001" / f"{FULL}.bin"
        size_bytes = file.stat().st_size
        rates: dict[str, list[float]] = {
            name: [] for name in ("memcpy", "iperf3", "plain sockets", "first", "transfer", "mooncake")
        }
        processor: dict[str, list[float]] = {name: [] for name in list(rates)[1:]}
        with (
            process(serve, sender_root, args.streams) as real,
            process(serve_plain, file, piece_bytes) as plain,
        ):
            for _ in range(args.repeats):  # in turn, so that other work on the machine meets all alike
                rates["memcpy"].append(size_bytes / copy(file, Path(folder, "copy")))
                limit = iperf3(args.streams)
                if limit is not None:
                    rates["iperf3"].append(limit[0])
                    processor["iperf3"].append(limit[1] * size_bytes)
                began_s = processor_s(plain)
                took_s = transfer_plain(plain.address, size_bytes, piece_bytes, args.streams)
                rates["plain sockets"].append(size_bytes / took_s)
                processor["plain sockets"].append(processor_s(plain) - began_s)
                for name in ("first", "transfer", "mooncake")[: 3 if transfer_engine() else 2]:
                    began_s = processor_s(real)
                    is_mooncake = name == "mooncake"
                    took_s = transfer(
                        receiver_root, real.address, announced, args.streams, by_engine=is_mooncake
                    )
                    rates[name].append(size_bytes / took_s)
                    processor[name].append(processor_s(real) - began_s)
                shutil.rmtree(receiver_root)
    medians = {name: statistics.median(some) for name, some in rates.items() if some}
    spent_s = {name: statistics.median(some) for name, some in processor.items() if some}
    limit_name = "iperf3" if "iperf3" in medians else "plain sockets"
    cores = len(os.sched_getaffinity(0))
    print(
        f"{size_bytes / 1e9:.2f} GB, {args.streams} streams, pieces of {args.piece_mib} MiB, {cores} cores;"
        f" median of {args.repeats} (least, most)"
    )
    for name, rate in medians.items():
        least, most = min(rates[name]) / 1e9, max(rates[name]) / 1e9
        print(
            f"{name:14s} {rate / 1e9:6.2f} GB/s ({least:.2f}, {most:.2f})"
            f"  {100 * rate / medians[limit_name]:4.0f} % of {limit_name}"
            + (f", processor {spent / size_bytes * 1e9:.2f} s/GB" if (spent := spent_s.get(name)) else "")
        )
    share = medians["transfer"] / medians[limit_name]
    print(
        f"transfer at {100 * share:.0f} % of {limit_name}; wanted 80 %: {'met' if share >= 0.8 else 'missed'}"
    )


if __name__ == "__main__":
    main()
