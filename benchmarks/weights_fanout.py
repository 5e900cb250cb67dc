"""Time until the last of many receivers has a version, with the sender's link capped, peers on and off.

    python benchmarks/weights_fanout.py [--receivers 1 2 4 8 16] [--mb 32] [--mb-per-s 16]

The cap is the sender's own bucket, over all its connections; links between receivers are loopback. Sender and
receivers are threads of one process, so at high counts the processor is what they share; the numbers show the
growth, not a machine's best. `copies`: what left the sender, in versions. Claim: with peers the time grows no
faster than logarithmically; the limit is one version over the capped link.
"""

import argparse
import math
import random
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rl_agent.weights.delta_policy import DeltaSettings
from rl_agent.weights.fetch import FetchSettings
from rl_agent.weights.publish import Publisher, PublishSettings
from rl_agent.weights.receive import Announcement, Receiver, ReceiveSettings
from rl_agent.weights.server import ServerSettings, WeightServer
from rl_agent.weights.shelf import Shelf
from rl_agent.weights.source_tcp import TcpSource
from rl_agent.weights.sources import StateDict
from rl_agent.weights.store import SnapshotStore

TOKEN = b"benchmark"
PIECE_BYTES = 2**18
MOST_PEERS = 4
LIMIT_S = 600.0
FETCH = FetchSettings(
    streams_per_source=1,
    pieces_at_once=2,
    piece_timeout_s=60.0,
    retries=20,
    retry_pause_s=0.1,
    max_wrong_pieces=0,
    stop_poll_s=0.2,
)


def server_settings(bytes_per_s: float | None) -> ServerSettings:
    return ServerSettings(("127.0.0.1",), 0, 256, 60.0, 60.0, bytes_per_s)


def measure(
    sender_store: SnapshotStore, announced: Announcement, count: int, bytes_per_s: float, with_peers: bool
) -> tuple[float, int]:
    """Seconds until all have it, and bytes that the sender sent."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        sender = stack.enter_context(WeightServer(Shelf(sender_store), TOKEN, server_settings(bytes_per_s)))
        hosts = []
        for index in range(count):
            store = stack.enter_context(SnapshotStore(Path(folder, str(index)), keep_versions=1))
            shelf = Shelf(store)
            server = stack.enter_context(WeightServer(shelf, TOKEN, server_settings(None)))
            hosts.append((Receiver(store, shelf, ReceiveSettings(FETCH, 1, 0)), server.address))
        failures: list[BaseException] = []

        def fetch(index: int) -> None:
            others = [address for number, (_, address) in enumerate(hosts) if number != index]
            peers = random.Random(index).sample(others, min(MOST_PEERS, len(others))) if with_peers else []
            sources = [TcpSource(*address, TOKEN, 60.0) for address in (sender.address, *peers)]
            try:
                hosts[index][0].receive(announced, sources, timeout_s=LIMIT_S, stop=threading.Event())
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--receivers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--mb", type=float, default=32.0)
    parser.add_argument("--mb-per-s", type=float, default=16.0)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        SnapshotStore(Path(folder), keep_versions=1) as store,
    ):
        delta = DeltaSettings("never", block_bytes=2**20, link_bytes_per_s=1e9, retry_after=1)
        settings = PublishSettings(PIECE_BYTES, threads=2, serving_dtype=None, delta=delta)
        weights = {"weight": torch.randint(0, 256, (int(args.mb * 1e6),), dtype=torch.uint8)}
        snapshot = Publisher(store, settings).publish(1, StateDict(weights, {}))
        announced = Announcement(1, snapshot.manifest.digest)
        size_bytes, rate = snapshot.manifest.full.size_bytes, args.mb_per_s * 1e6
        limit_s = size_bytes / rate
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
    main()
