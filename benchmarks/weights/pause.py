"""Measures an update on a real vLLM under load: its pause, and the way of a version, beside a restart.

    python benchmarks/weights/pause.py                                a tiny model on the CPU, a few minutes
    python benchmarks/weights/pause.py --device gpu --shape 1.7b      Qwen3-1.7B's shape, random weights
    python benchmarks/weights/pause.py --device gpu --model FOLDER    a model of your own

A trainer takes real AdamW steps (fp32 master, real cross-entropy on random tokens) and publishes each version
over TCP on loopback, capped by --link-gbit-per-s if that is given. A host beside the engine fetches it in
full, and again as a difference from the version before, and brings it into the server, which is streaming
--streams responses without end to a process of its own. Then what the synchronous loop does otherwise with
such a step: write a checkpoint, end vLLM, start it on the checkpoint until it answers.

    gap     time without a token of any stream: the longest of each update, and all between updates
    pause   from /pause to /resume, by the caller's clock
    behind  seconds from the end of the step until the engine serves its weights
"""

import argparse
import asyncio
import itertools
import multiprocessing
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.trainer.qwen3_shapes import SHAPES
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.engine.server import server_argv, server_environment
from rl_agent.system.flag_parser import FlagParser
from rl_agent.weights.download.receive import Announcement, Receiver, Upstream
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.server.server import ServerSettings, WeightServer
from rl_agent.weights.sources.source_tcp import TcpSource
from rl_agent.weights.store.catalog import Catalog
from rl_agent.weights.store.store import SnapshotStore
from tests.integration.conftest import stop_group
from tests.integration.tiny_model import make_plan, make_tiny_model
from tests.support.weight_transfers import StateDict, weights_config

TOKEN = b"benchmark"
START_S = 900.0
PIECE_BYTES = 4 * 2**20


def make_model(folder: Path, shape: str | None) -> Path:
    """A model with random weights; one of `SHAPES` keeps the tiny one's tokenizer."""
    tiny = make_tiny_model(folder, hidden_size=128)
    if shape is None:
        return tiny
    from transformers import Qwen3Config, Qwen3ForCausalLM

    (folder / "model.safetensors").unlink()
    with torch.device("cuda"):
        Qwen3ForCausalLM(Qwen3Config(**SHAPES[shape])).to(torch.bfloat16).save_pretrained(folder)
    return folder


@contextmanager
def vllm(args: argparse.Namespace, model: Path, folder: Path, *more: str) -> Iterator[tuple[str, float]]:
    """Address of a server that can take weights, and the seconds until it answered."""
    on_gpu = ["engine=gpu", f"engine.gpu_memory_utilization={args.gpu_memory}", "engine.data_parallel_size=1"]
    on_cpu = ["engine.extra_args.kv-cache-memory-bytes=67108864"]
    words = on_gpu if args.device == "gpu" else on_cpu
    words = [*words, "weights=inplace", f"engine.port={free_port()}", f"engine.max_num_seqs={args.streams}"]
    plan = make_plan(folder, model, *words, f"engine.max_model_len={args.max_tokens + 8}", *more)
    url, began = plan.config.engine.base_url, time.monotonic()
    with (folder / "vllm.log").open("wb") as output:
        environment = server_environment(plan.config, os.environ)
        process = subprocess.Popen(
            server_argv(plan), env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        while not answers(url):
            if process.poll() is not None or time.monotonic() - began > START_S:
                raise SystemExit(f"vLLM did not start: {folder / 'vllm.log'}")
            time.sleep(0.1)
        yield url, time.monotonic() - began
    finally:
        stop_group(process)


def answers(url: str) -> bool:
    import urllib.request

    try:
        with urllib.request.urlopen(url + "/health", timeout=2):
            return True
    except OSError:
        return False


def stream_without_end(url: str, streams: int, max_tokens: int, pipe: Connection) -> None:
    """Sends the times at which tokens came, once it is cancelled. `time.monotonic` is the host's."""
    times: list[float] = []
    has_begun = asyncio.Event()

    async def one(session: aiohttp.ClientSession, name: str, number: int) -> None:
        for turn in itertools.count():
            body = {"model": name, "prompt": [5 + (number + turn) % 50, 7], "max_tokens": max_tokens - 2}
            body |= {"stream": True, "ignore_eos": True, "seed": turn}
            async with session.post(url + "/v1/completions", json=body) as response:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        times.append(time.monotonic())
                        if len(times) == 20 * streams:
                            has_begun.set()

    async def run() -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            name = (await (await session.get(url + "/v1/models")).json())["data"][0]["id"]
            async with asyncio.TaskGroup() as group:
                jobs = [group.create_task(one(session, name, number)) for number in range(streams)]
                await has_begun.wait()
                pipe.send("streaming")
                await asyncio.to_thread(pipe.recv)
                for job in jobs:
                    job.cancel()

    asyncio.run(run())
    pipe.send(times)


class Trainer:
    """Real steps of a model on random tokens."""

    def __init__(self, model: Path, device: str, learning_rate: float) -> None:
        from transformers import AutoModelForCausalLM

        self.device = "cuda" if device == "gpu" else "cpu"
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(self.device)
        if device == "gpu":
            self.model.gradient_checkpointing_enable()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate)

    def step(self) -> None:
        tokens = torch.randint(5, 90, (4, 128), device=self.device)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            self.model(input_ids=tokens, labels=tokens).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, folder: Path, like: Path) -> None:
        shutil.copytree(like, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
        self.model.to(torch.bfloat16 if self.device == "cuda" else torch.float32).save_pretrained(folder)


@dataclass(frozen=True, slots=True)
class Update:
    publish_s: float
    full_s: float
    full_bytes: int
    delta_s: float
    delta_bytes: int
    pause_s: float
    load_s: float
    began: float
    ended: float

    def behind_s(self, fetch_s: float) -> float:
        return self.publish_s + fetch_s + (self.ended - self.began)


class Way:
    """The way from the trainer's memory to the engine, with both kinds of receivers."""

    def __init__(self, args: argparse.Namespace, root: Path) -> None:
        link = 1e9 / 8 * args.link_gbit_per_s if args.link_gbit_per_s else None
        self._args = args
        self.trainer = SnapshotStore(root / "trainer", keep_versions=2)
        weights = weights_config(PIECE_BYTES, delta="always", threads=None)
        dtype = "BF16" if args.device == "gpu" else None
        self.publisher = Publisher(self.trainer, weights, serving_dtype=dtype)
        settings = ServerSettings(("127.0.0.1",), 0, 64, 30.0, 300.0, bytes_per_s=link)
        self.server = WeightServer(Catalog(self.trainer), TOKEN, settings)
        self.full = SnapshotStore(root / "full", keep_versions=1)
        self.delta = SnapshotStore(root / "delta", keep_versions=2)

    def receive(self, store: SnapshotStore, weight_version: int, max_deltas: int) -> tuple[float, int]:

        weights = weights_config(
            streams_per_source=4, pieces_at_once=8, piece_timeout_s=300.0, threads=4, max_deltas=max_deltas
        )
        receiver = Receiver(store, Catalog(store), weights)
        with self.trainer.hold(weight_version) as snapshot:
            announced = Announcement.of(snapshot.manifest)
        began = time.monotonic()
        source = TcpSource(*self.server.address, TOKEN, 30.0)
        _, report = receiver.receive(announced, [Upstream([source])], timeout_s=600.0, stop=threading.Event())
        return time.monotonic() - began, report.fetched_bytes

    def bring(self, weight_version: int, model: Any, url: str) -> Update:
        began = time.monotonic()
        self.publisher.publish(weight_version, StateDict.of(model.state_dict()))
        publish_s = time.monotonic() - began
        full = self.receive(self.full, weight_version, 0)
        delta = self.receive(self.delta, weight_version, 4)
        began = time.monotonic()
        report = asyncio.run(self._load(url, weight_version))
        ended = time.monotonic()
        return Update(publish_s, *full, *delta, report.pause_s, report.load_s, began, ended)

    async def _load(self, url: str, weight_version: int):
        async with aiohttp.ClientSession() as session:
            with self.delta.hold(weight_version) as snapshot:
                return await VllmServer(session, url, timeout_s=600.0).load(snapshot, previous=None)


def gaps(times: list[float], updates: list[Update]) -> tuple[list[float], list[float]]:
    """The longest gap of each update, and all gaps outside of updates."""
    pairs = list(itertools.pairwise(sorted(times)))
    meeting = [[late - early for early, late in pairs if early < u.ended and late > u.began] for u in updates]
    outside = [
        late - early for early, late in pairs if not any(early < u.ended and late > u.began for u in updates)
    ]
    return [max(pauses, default=0.0) for pauses in meeting], outside


def quantiles(values: list[float]) -> str:
    ordered = sorted(values)
    half, last = statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return f"p50 {1e3 * half:8.1f} ms   p99 {1e3 * last:8.1f} ms   of {len(ordered)}"


def report(updates: list[Update], times: list[float]) -> None:
    during, outside = gaps(times, updates)
    print(f"gap in an update    {quantiles(during)}")
    print(f"gap between updates {quantiles(outside)}")
    print(f"pause               {quantiles([update.pause_s for update in updates])}")
    later = updates[1:]  # the first version has nothing to differ from
    rows = {
        "full": [(u.behind_s(u.full_s), u.full_s, u.full_bytes) for u in later],
        "delta": [(u.behind_s(u.delta_s), u.delta_s, u.delta_bytes) for u in later],
    }
    publish_s = statistics.median(update.publish_s for update in later)
    print(f"publish {publish_s:.2f} s, differences included; medians:")
    for name, pauses in rows.items():
        behind, fetch, size = (statistics.median(column) for column in zip(*pauses, strict=True))
        print(f"{name:12s} behind {behind:8.2f} s   fetch {fetch:8.2f} s   {size / 1e6:10.2f} MB")


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--shape", choices=tuple(SHAPES))
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=240)
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    parser.add_argument("--pace-s", type=float, default=2.0, help="from one update to the next")
    parser.add_argument("--link-gbit-per-s", type=float)
    parser.add_argument("--gpu-memory", type=float, default=0.4, help="share that vLLM takes")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended on the way out
    with tempfile.TemporaryDirectory() as disk, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        model = args.model or make_model(Path(disk, "model"), args.shape)
        trainer, way = Trainer(model, args.device, args.learning_rate), Way(args, Path(memory))
        with vllm(args, model, Path(disk, "first")) as (url, start_s), way.server:
            settings = " ".join(f"{name}={value}" for name, value in vars(args).items() if value is not None)
            print(f"{settings}; vLLM started in {start_s:.1f} s")
            updates, times = run_updates(args, trainer, way, url)
        report(updates, times)
        began = time.monotonic()
        trainer.save(Path(disk, "checkpoint"), model)
        written_s = time.monotonic() - began
        with vllm(args, Path(disk, "checkpoint"), Path(disk, "second")) as (_, start_s):
            behind_s = written_s + start_s
            print(
                f"restart      behind {behind_s:8.2f} s   checkpoint {written_s:.2f} s, vLLM {start_s:.2f} s"
            )


def run_updates(
    args: argparse.Namespace, trainer: Trainer, way: Way, url: str
) -> tuple[list[Update], list[float]]:
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    client = context.Process(
        target=stream_without_end, args=(url, args.streams, args.max_tokens, far), daemon=True
    )
    client.start()
    near.recv()
    updates = []
    for weight_version in range(1, args.updates + 1):
        trainer.step()
        updates.append(way.bring(weight_version, trainer.model, url))
        time.sleep(args.pace_s)
    near.send("stop")
    times = near.recv()
    client.join(30)
    return updates, times


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
