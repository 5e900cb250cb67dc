"""Requests with images through the manager, against asking the same vLLM directly; and what an episode sends.

    python benchmarks/pool/images.py                on a CPU: a tiny Qwen3-VL, images of two tokens
    python benchmarks/pool/images.py --shape 2b     on one GPU: Qwen3-VL-2B's shape, images of 775 tokens

On a CPU torchvision comes from beside the environment (`PYTHONPATH=.venv/vision`). On a GPU host without a
network, from the root of the repository and with the Python that has vLLM:

    python benchmarks/pool/images.py --shape 2b --images 1 3 --out images-1-3.json
    python benchmarks/pool/images.py --shape 2b --images 10 --turns 2 --rounds 3 --out images-10.json

Each takes less than ten minutes, as estimated from 25 ms that vLLM's one API process takes to prepare an
image; `--engine-args "--gpu-memory-utilization 0.85"` hands words on to vLLM, whose log is `--log`.

Images are screenshots of 1000 x 800 pixels. Both ways are asked by the collector's client
(`rl_agent.engine.client`) for whole greedy responses, 64 at a time: each place asks `--turns` times in a
round. `new` images were never sent before, which costs a relay most; with `window` each place is an episode
whose requests show its newest images, one of them new. Both ways have images of their own, for an engine
keeps what it has computed. After a round for practice the order alternates; `of direct` is the median of the
ratios of tokens/s to the direct one of the same round; `CPU ms` is the manager's for a
request.

An episode of 30 turns shows all its images in every turn. Its bytes are counted in both directions: of a
client that asks chats, which bring their images as base64 in every turn, and of the collector's; directly and
through a manager with one engine in the first half and another in the second.

Every response has all its tokens, and every prompt the tokens of its images, or this stops. Weights are
random (vLLM makes them): this measures speed, never learning.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp
import psutil
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.engine.logprobs import CPU_ENVIRONMENT, CPU_WORDS
from benchmarks.engine.logprobs import started as started_engine
from benchmarks.pool.image_requests import SHAPES, SIZE, Asker, Screenshots, make_processor
from benchmarks.pool.relay import join, started
from benchmarks.trainer.stream_loop import with_words
from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.context.image_tokens import ImageTokens
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.packed import PromptImage
from rl_agent.engine.server import VLLM_SERVE
from rl_agent.system.flag_parser import FlagParser
from rl_agent.system.owned import end_owned

EPISODE_TURNS, EPISODE_TOKENS = 30, 16
SETTINGS = ClientSettings(request_timeout_s=600, retries=0)
NEVER = "<|never|>"
"""A token that no model can sample: its id is above its vocabulary."""


def make_model(folder: Path, shape: str, longest: int) -> None:
    """Write a model without weights, for `--load-format dummy`; it has no token that ends a response."""
    config = make_processor(folder, shape, longest)
    path, words = folder / "tokenizer.json", folder / "tokenizer_config.json"
    state = with_words(json.loads(path.read_bytes()), config.text_config.vocab_size)
    state["model"]["vocab"][NEVER] = config.text_config.vocab_size
    path.write_text(json.dumps(state))
    words.write_text(json.dumps(json.loads(words.read_bytes()) | {"eos_token": NEVER}))


# Goodput ----------------------------------------------------------------------------------------------------


@dataclass
class Way:
    """One way to the engine."""

    name: str
    url: str
    relay: int | None = None
    """Process in between."""
    rates: list[float] = field(default_factory=list)
    """Tokens per second of each round."""
    latencies_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    """Processor time of the relay."""


@dataclass(frozen=True)
class Load:
    """The requests of a round."""

    images: int
    """The images of a request."""
    kind: str
    places: int
    turns: int

    @property
    def step(self) -> int:
        """The new images of a turn."""
        return self.images if self.kind == "new" else 1


async def play(way: Way, asker: Asker, files: Screenshots, load: Load, name: str) -> None:
    """Play one round, named so that its images are its own."""
    size = load.step * (load.turns - 1) + load.images
    names = (f"{name} {load} {way.name}" for _ in range(load.places))
    places = [[files.take(f"{of} {place} {n}") for n in range(size)] for place, of in enumerate(names)]
    async with EngineClient(way.url, SETTINGS, identify=lambda _: 0) as client:

        async def work(place: int, shown: list[PromptImage]) -> None:
            for turn in range(load.turns):
                began = time.perf_counter()
                newest = shown[turn * load.step : turn * load.step + load.images]
                await asker.by_tokens(client, newest, place * load.turns + turn)
                way.latencies_s.append(time.perf_counter() - began)

        cpu_s, began = cpu_of(way), time.perf_counter()
        async with asyncio.TaskGroup() as jobs:
            for place, shown in enumerate(places):
                jobs.create_task(work(place, shown))
        way.rates.append(load.places * load.turns * asker.tokens / (time.perf_counter() - began))
        way.cpu_s += cpu_of(way) - cpu_s
    for image in (image for shown in places for image in shown):
        image.path.unlink()


def cpu_of(way: Way) -> float:
    return 0.0 if way.relay is None else sum(psutil.Process(way.relay).cpu_times()[:2])


async def compare(direct: Way, ours: Way, asker: Asker, files: Screenshots, load: Load, rounds: int) -> Any:
    """Return the median share of the direct rate, the lowest and the highest."""
    ways = (direct, ours)
    for way in ways:
        await play(Way(way.name, way.url), asker, files, replace(load, turns=1), "practice")
    for number in range(rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            await play(way, asker, files, load, str(number))
    shares = [rate / of for rate, of in zip(ours.rates, direct.rates, strict=True)]
    for way in ways:
        ordered, rate = sorted(way.latencies_s), statistics.median(way.rates)
        p50, p99 = (1e3 * ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
        line = f"{load.images:>6} {load.kind:<7}{way.name:<8} {rate / asker.tokens:>10.1f} {rate:>9.0f}"
        line += f" {p50:>8.0f} {p99:>8.0f}"
        if way is ours:
            line += f" {statistics.median(shares):>10.1%} {min(shares):>7.1%} {max(shares):>7.1%}"
            line += f" {1e3 * way.cpu_s / len(ordered):>7.1f}"
        print(line, flush=True)
    return [round(value, 3) for value in (statistics.median(shares), min(shares), max(shares))]


# An episode -------------------------------------------------------------------------------------------------


@dataclass
class Meter:
    """Passes connections on to a server and counts their bytes."""

    target: str
    up_bytes: int = 0
    down_bytes: int = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.removeprefix("http://").partition(":")
        there, back = await asyncio.open_connection(host, int(port))
        async with asyncio.TaskGroup() as jobs:
            jobs.create_task(self._copy(reader, back, is_up=True))
            jobs.create_task(self._copy(there, writer, is_up=False))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_up: bool) -> None:
        while part := await reader.read(65536):
            if is_up:
                self.up_bytes += len(part)
            else:
                self.down_bytes += len(part)
            writer.write(part)
            await writer.drain()
        writer.close()

    @property
    def total(self) -> int:
        return self.up_bytes + self.down_bytes


async def episode(asker: Asker, files: Screenshots, engine: str) -> dict[str, int]:
    """Return the bytes of an episode on each link."""
    results = {}
    settings = ClientSettings(request_timeout_s=600, retries=0, inlines_images=True)
    for name in ("chat", "collector"):
        ask = asker.by_chat if name == "chat" else asker.by_tokens
        direct, front, first, second = (Meter(engine) for _ in range(4))
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(direct.running())
            async with EngineClient(url, settings, identify=lambda _: 0) as client:
                images: list[PromptImage] = []
                for turn in range(EPISODE_TURNS):
                    images.append(files.take(f"direct {name} {turn}"))
                    await ask(client, images, turn)
            manager, _ = stack.enter_context(started("-m", "rl_agent.cli", "manager", "port=0"))
            front.target = manager
            urls = [await stack.enter_async_context(meter.running()) for meter in (first, second)]
            engine_id = await join(manager, urls[0])
            url = await stack.enter_async_context(front.running())
            async with EngineClient(url, settings, identify=lambda _: 0) as client:
                images = []
                for turn in range(EPISODE_TURNS):
                    if turn == EPISODE_TURNS // 2:
                        await drain(manager, engine_id)
                        await join(manager, urls[1])
                    images.append(files.take(f"manager {name} {turn}"))
                    await ask(client, images, turn)
        # An engine gets each image once: the second one all of them, the first those of its own turns.
        for meter, shown in ((first, EPISODE_TURNS // 2), (second, EPISODE_TURNS)):
            content = shown * files.size_bytes * 4 / 3
            assert content < meter.up_bytes < 1.2 * content, f"{meter.up_bytes} bytes for {shown} images"
        links = {"direct": direct, "to manager": front, "to engine A": first, "to engine B": second}
        results |= {f"{name}, {link}": meter.total for link, meter in links.items()}
    unavoidable = EPISODE_TURNS * files.size_bytes
    print(f"\n{EPISODE_TURNS} turns, each with one more image: {unavoidable / 1e6:.2f} MB of files")
    for name, total in results.items():
        print(f"{name:<24} {total / 1e6:>8.2f} MB, {total / unavoidable:>6.2f} times the files", flush=True)
    return results


async def drain(manager: str, engine_id: str) -> None:
    url = f"{manager}/engines/{engine_id}/drain"
    async with aiohttp.ClientSession() as session, session.post(url, json={}) as answer:
        assert answer.status == 200, await answer.text()


# The whole --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def vllm(options: argparse.Namespace, model: Path, longest: int, log: BinaryIO) -> AsyncIterator[str]:
    """Start a server; its URL."""
    is_cpu, port = options.shape == "tiny", free_port()
    words = [sys.executable, *VLLM_SERVE, str(model), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--max-model-len", str(longest), "--max-num-seqs", str(options.concurrency)]
    words += ["--dtype", "float32" if is_cpu else "bfloat16", "--limit-mm-per-prompt", '{"video": 0}']
    words += [*(() if options.model else ("--load-format", "dummy")), *(CPU_WORDS if is_cpu else ())]
    environment, url = os.environ | (CPU_ENVIRONMENT if is_cpu else {}), f"http://127.0.0.1:{port}"
    process = await started_engine(words + options.engine_args.split(), log, environment, url)
    try:
        yield url
    finally:
        await end_owned(process, 10)


async def measure(options: argparse.Namespace, folder: Path, log: BinaryIO) -> None:
    model, files = options.model or folder / "model", Screenshots(folder)
    if options.model is None:
        make_model(model, options.shape, 65_536)
    size = ImageTokens.load(model).of(SIZE)
    assert size is not None, f"{model}: unknown image processor"
    results: dict[str, Any] = {
        "shape": options.shape,
        "file_bytes": files.size_bytes,
        "tokens_of_image": size,
    }

    def save(name: str, value: Any) -> None:
        results[name] = value
        if options.out is not None:
            options.out.write_text(json.dumps(results) + "\n")

    longest = max(*options.images, EPISODE_TURNS) * (size + 64) + options.tokens
    async with vllm(options, model, longest, log) as engine:
        asker = Asker(ChatTokenizer.load(str(model), {}), size, options.tokens)
        print(f"images of {files.size_bytes} bytes and {size} tokens; rounds: {options.rounds}\n")
        print(
            "images        way      requests/s  tokens/s   p50 ms   p99 ms  of direct    from      to  CPU ms"
        )
        with started("-m", "rl_agent.cli", "manager", "port=0") as (manager, process):
            await join(manager, engine)
            for images in options.images:
                for kind in options.kinds:
                    load = Load(images, kind, options.concurrency, options.turns)
                    ways = Way("direct", engine), Way("manager", manager, process)
                    shares = await compare(*ways, asker, files, load, options.rounds)
                    save(f"{images} {kind}", shares)
        asker.tokens = EPISODE_TOKENS
        save("episode_bytes", await episode(asker, files, engine))


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--model", type=Path, help="a model's folder instead of random weights of the shape")
    parser.add_argument("--images", type=int, nargs="+", default=[1, 3, 10], help="of a request")
    parser.add_argument("--kinds", choices=("new", "window"), nargs="+", default=["new", "window"])
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4, help="requests of each place in a round")
    parser.add_argument("--tokens", type=int, default=64, help="of a response")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine-args", default="", help="further words for vLLM")
    parser.add_argument("--log", type=Path, default=Path("vllm.log"), help="the engine's log")
    parser.add_argument("--out", type=Path, help="JSON of the results, written after each of them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pool-images-") as folder, options.log.open("wb") as log:
        uvloop.run(measure(options, Path(folder), log))
    return 0


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
