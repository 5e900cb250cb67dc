"""Time until the last of many receivers has a version, with the sender's link capped, peers on and off.

    python benchmarks/weights/fanout.py [--receivers 1 2 4 8 16] [--mb 32] [--mb-per-s 16]
    python benchmarks/weights/fanout.py --links 1 2 4 [--mb 32] [--mb-per-s 16]

The cap is the sender's own bucket, over all its connections; links between receivers are loopback. Sender and
receivers are threads of one process, so at high counts the processor is what they share; the numbers show the
growth, not a machine's best. `copies`: what left the sender, in versions. Claim: with peers the time grows no
faster than logarithmically; the limit is one version over the capped link.

With `--links`: one receiver, and between it and the sender that many links, each with an interface of its
own at either end and that much bandwidth. Both are in network namespaces, which takes root, `ip` and `tc`.
Claim: n links take at most 1.25 times an n-th of what one takes.
"""

import argparse
import ctypes
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.flag_parser import FlagParser
from rl_agent.testing.weight_transfers import StateDict, weights_config
from rl_agent.weights.download.receive import Announcement, Receiver, Upstream
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.server.server import ServerSettings, WeightServer
from rl_agent.weights.sources.source_tcp import TcpSource
from rl_agent.weights.store.catalog import Catalog
from rl_agent.weights.store.store import SnapshotStore

TOKEN = b"benchmark"
PIECE_BYTES = 2**18
MOST_PEERS = 4
LIMIT_S = 600.0
WEIGHTS = weights_config(
    PIECE_BYTES,
    delta="never",
    max_deltas=0,
    streams_per_source=1,
    pieces_at_once=2,
    piece_timeout_s=60.0,
    retries=20,
    retry_pause_s=0.1,
    max_wrong_pieces=0,
)


def server_settings(bytes_per_s: float | None, hosts: tuple[str, ...] = ("127.0.0.1",)) -> ServerSettings:
    return ServerSettings(hosts, 0, 256, 60.0, 60.0, bytes_per_s)


def run(words: str) -> None:
    subprocess.run(words.split(), check=True)


@contextmanager
def linked_namespaces(links: int, bytes_per_s: float) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Namespaces of a sender and a receiver, and the sender's addresses, one a link."""
    sender, receiver = f"weights-{os.getpid()}-s", f"weights-{os.getpid()}-r"
    with ExitStack() as stack:
        for name in (sender, receiver):
            run(f"ip netns add {name}")
            stack.callback(run, f"ip netns del {name}")
        for link in range(links):
            run(f"ip link add s{link} netns {sender} type veth peer name r{link} netns {receiver}")
            for name, end, last in ((sender, "s", 1), (receiver, "r", 2)):
                run(f"ip -n {name} addr add 10.99.{link}.{last}/24 dev {end}{link}")
                run(f"ip -n {name} link set {end}{link} up")
            rate = f"rate {8 * bytes_per_s:.0f}bit burst 256kb latency 50ms"
            run(f"tc -n {sender} qdisc add dev s{link} root tbf {rate}")
        yield sender, receiver, tuple(f"10.99.{link}.1" for link in range(links))


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Sockets that this thread makes, and threads that it starts, belong to the namespace."""
    with Path("/proc/thread-self/ns/net").open() as before, Path("/run/netns", namespace).open() as there:
        enter(there.fileno())
        try:
            yield
        finally:
            enter(before.fileno())


def enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, 0):
        raise OSError(ctypes.get_errno(), "cannot enter another network namespace")


def measure_links(store: SnapshotStore, announced: Announcement, links: int, bytes_per_s: float) -> float:
    """Seconds until one receiver has it."""
    with ExitStack() as stack:
        sender, receiver, hosts = stack.enter_context(linked_namespaces(links, bytes_per_s))
        with inside(sender):
            server = stack.enter_context(WeightServer(Catalog(store), TOKEN, server_settings(None, hosts)))
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        own = stack.enter_context(SnapshotStore(Path(folder, "own"), keep_versions=1))
        sources = [TcpSource(*address, TOKEN, 60.0) for address in server.addresses]
        with inside(receiver):
            began = time.perf_counter()
            Receiver(own, Catalog(own), WEIGHTS).receive(
                announced, [Upstream(sources)], timeout_s=LIMIT_S, stop=threading.Event()
            )
            return time.perf_counter() - began


def report_links(
    store: SnapshotStore, announced: Announcement, size_bytes: int, args: argparse.Namespace
) -> None:
    print("links    seconds      MB/s   of all links")
    times = {}
    for links in args.links:
        rate = args.mb_per_s * 1e6
        times[links] = took_s = measure_links(store, announced, links, rate)
        share = size_bytes / took_s / (links * rate)
        print(f"{links:5d} {took_s:8.2f} s {size_bytes / took_s / 1e6:9.1f} {share:12.0%}", flush=True)
    least, most = min(times), max(times)
    if most > least:
        speedup, wanted = times[least] / times[most], most / least / 1.25
        verdict = "met" if speedup >= wanted else "missed"
        print(f"{most} links are {speedup:.2f} times as fast as {least}; wanted {wanted:.2f}: {verdict}")


def measure(
    sender_store: SnapshotStore, announced: Announcement, count: int, bytes_per_s: float, with_peers: bool
) -> tuple[float, int]:
    """Seconds until all have it, and bytes that the sender sent."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        sender = stack.enter_context(WeightServer(Catalog(sender_store), TOKEN, server_settings(bytes_per_s)))
        hosts = []
        for index in range(count):
            store = stack.enter_context(SnapshotStore(Path(folder, str(index)), keep_versions=1))
            catalog = Catalog(store)
            server = stack.enter_context(WeightServer(catalog, TOKEN, server_settings(None)))
            hosts.append((Receiver(store, catalog, WEIGHTS), server.address))
        failures: list[BaseException] = []

        def fetch(index: int) -> None:
            others = [address for number, (_, address) in enumerate(hosts) if number != index]
            peers = random.Random(index).sample(others, min(MOST_PEERS, len(others))) if with_peers else []
            sources = [TcpSource(*address, TOKEN, 60.0) for address in (sender.address, *peers)]
            try:
                hosts[index][0].receive(
                    announced, [Upstream(sources)], timeout_s=LIMIT_S, stop=threading.Event()
                )
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=fetch, args=(index,)) for index in range(count)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s = time.perf_counter() - began
        if failures:
            raise failures[0]
        return took_s, sender.sent_bytes


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--receivers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--links", type=int, nargs="+", default=[])
    parser.add_argument("--mb", type=float, default=32.0)
    parser.add_argument("--mb-per-s", type=float, default=16.0)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        SnapshotStore(Path(folder), keep_versions=1) as store,
    ):
        weights = {"weight": torch.randint(0, 256, (int(args.mb * 1e6),), dtype=torch.uint8)}
        snapshot = Publisher(store, WEIGHTS).publish(1, StateDict(weights, {}))
        announced = Announcement.of(snapshot.manifest)
        size_bytes, rate = snapshot.manifest.full.size_bytes, args.mb_per_s * 1e6
        limit_s = size_bytes / rate
        if args.links:
            print(f"{size_bytes / 1e6:.0f} MB over links of {args.mb_per_s:.0f} MB/s each")
            report_links(store, announced, size_bytes, args)
            return
        print(
            f"{size_bytes / 1e6:.0f} MB over {args.mb_per_s:.0f} MB/s: one copy takes {limit_s:.2f} s;"
            f" up to {MOST_PEERS} peers each"
        )
        print("receivers   without peers  copies   with peers  copies   of the limit")
        times = {}
        for count in args.receivers:
            alone_s, alone_bytes = measure(store, announced, count, rate, with_peers=False)
            times[count], shared_bytes = measure(store, announced, count, rate, with_peers=True)
            print(
                f"{count:9d} {alone_s:13.2f} s {alone_bytes / size_bytes:7.2f} {times[count]:10.2f} s"
                f" {shared_bytes / size_bytes:7.2f} {times[count] / limit_s:11.2f} x",
                flush=True,
            )
    least, most = min(times), max(times)
    if most > least:
        allowed = times[least] * (1 + math.log2(most / least))
        verdict = "met" if times[most] <= allowed else "missed"
        print(f"{most} receivers: {times[most]:.2f} s; logarithmic growth allows {allowed:.2f} s: {verdict}")


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
