"""Time until the last engine of a pool serves a version, as the manager sends its hosts to each other.

    python benchmarks/pool/weights.py [--workers 1 2 4 8] [--versions 2] [--mb 32] [--mb-per-s 16]
    python benchmarks/pool/weights.py --one-host      workers of one machine, which share what they fetch

The real manager over its HTTP, the workers' real side of transfers, and engines that take a version at once.
The publisher's link is capped; all run in one process, so at high counts the processor is what they share.
For its first version a worker waits one beat more, to be known to the others. Claim: the publisher sends
little more than one copy, however many workers there are; `limit` is one copy over the capped link.
"""

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.flag_parser import FlagParser
from rl_agent.pool.manager import running_manager
from rl_agent.pool.schemas import ENGINE_SECRET, BeatAnswer
from rl_agent.pool.settings import load_settings, load_weights
from rl_agent.pool.worker.weight_cache import HostWeights
from rl_agent.pool.worker.weight_follower import EngineWeights
from rl_agent.testing.weight_transfers import StateDict, weights_config
from rl_agent.weights.load.base import LoadReport
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.server.server import ServerSettings, WeightServer
from rl_agent.weights.store.catalog import Catalog
from rl_agent.weights.store.store import Snapshot, SnapshotStore

TOKEN = "benchmark"
BEAT_S = 1.0
PIECE_BYTES = 2**18
LIMIT_S = 600.0


class InstantEngine:
    """Serves whatever it is given."""

    async def load(self, snapshot: Snapshot, *, previous: object, on_loaded: object) -> LoadReport:
        await on_loaded()  # type: ignore[operator]
        return LoadReport(snapshot.weight_version, 0.0, 0.0, ())


class Worker:
    """Beats and follows, without an engine's process."""

    def __init__(self, session: aiohttp.ClientSession, manager: str, name: str, host: HostWeights) -> None:
        self._session, self._manager, self._name = session, manager, name
        self._engine_id, self._secret = "", {ENGINE_SECRET: secrets.token_hex(16)}
        self.weights = EngineWeights(host, InstantEngine(), self.beat)  # type: ignore[arg-type]

    async def run(self) -> None:
        body = {"name": self._name, "has_worker": True}
        url = self._manager + "/engines"
        async with self._session.post(url, json=body, headers=self._secret) as answer:
            self._engine_id = (await answer.json())["engine_id"]
        while True:
            answer = await self.beat()
            self.weights.offer(answer.weights)
            await asyncio.sleep(BEAT_S)

    async def beat(self) -> BeatAnswer:
        url = f"{self._manager}/engines/{self._engine_id}/beat"
        body = {"weights": self.weights.report()}
        async with self._session.post(url, json=body, headers=self._secret) as answer:
            return BeatAnswer.model_validate(await answer.json())


def worker_host(folder: str, manager: str, index: int, args: argparse.Namespace) -> HostWeights:
    """Workers below one folder take each other's versions by links, as engines of one machine do."""
    own = folder if args.one_host else f"{folder}/{index}"
    settings = load_weights([f"store={own}", "streams_per_source=1", "threads=1"])
    return HostWeights(settings, "127.0.0.1", manager)


async def measure(count: int, args: argparse.Namespace) -> list[tuple[float, float]]:
    """For each version: seconds until the last worker has it, copies that left the publisher."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        store = stack.enter_context(SnapshotStore(Path(folder, "publisher"), keep_versions=1))
        settings = ServerSettings(("127.0.0.1",), 0, 256, 60.0, 60.0, args.mb_per_s * 1e6)
        server = stack.enter_context(WeightServer(Catalog(store), TOKEN.encode(), settings))
        config = load_settings(["port=0", "start_timeout_s=3600"], {})
        url, _ = await stack.enter_async_context(running_manager(config, Path(folder)))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        hosts = [stack.enter_context(worker_host(folder, url, index, args)) for index in range(count)]
        workers = [Worker(session, url, f"worker-{index}", host) for index, host in enumerate(hosts)]
        jobs = await stack.enter_async_context(asyncio.TaskGroup())
        running = [jobs.create_task(job) for one in workers for job in (one.run(), one.weights.run())]
        publisher = Publisher(store, weights_config(PIECE_BYTES, delta="never"))
        found = []
        for version in range(1, args.versions + 1):
            sent = server.sent_bytes
            took_s, size = await publish(session, url, publisher, server, workers, version, args.mb)
            found.append((took_s, (server.sent_bytes - sent) / size))
        for job in running:
            job.cancel()
        return found


async def publish(
    session: aiohttp.ClientSession,
    url: str,
    publisher: Publisher,
    server: WeightServer,
    workers: list[Worker],
    version: int,
    mb: float,
) -> tuple[float, int]:
    state = {"weight": torch.randint(0, 256, (int(mb * 1e6),), dtype=torch.uint8)}
    snapshot = await asyncio.to_thread(publisher.publish, version, StateDict(state, {}))
    body = {
        "weight_version": version,
        "digest": snapshot.manifest.digest,
        "delta_digest": snapshot.manifest.delta_digest,
        "sources": ["tcp://{}:{}".format(*server.address)],
        "transfer_token": TOKEN,
    }
    began = time.perf_counter()
    async with session.post(url + "/weights", json=body) as answer:
        answer.raise_for_status()
    async with asyncio.timeout(LIMIT_S):
        while any(one.weights.report()["weight_version"] != version for one in workers):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return time.perf_counter() - began, snapshot.manifest.full.size_bytes


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--one-host", action="store_true", help="the workers are of one machine")
    parser.add_argument("--versions", type=int, default=2)
    parser.add_argument("--mb", type=float, default=32.0)
    parser.add_argument("--mb-per-s", type=float, default=16.0)
    args = parser.parse_args()
    limit_s = args.mb / args.mb_per_s
    print(f"{args.mb:.0f} MB over {args.mb_per_s:.0f} MB/s: limit {limit_s:.2f} s; a beat every {BEAT_S:g} s")
    print("workers  version  until the last   of the limit  copies")
    for count in args.workers:
        for version, (took_s, copies) in enumerate(asyncio.run(measure(count, args)), start=1):
            share = took_s / limit_s
            print(f"{count:7d} {version:8d} {took_s:13.2f} s {share:12.2f} x {copies:7.2f}", flush=True)


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
