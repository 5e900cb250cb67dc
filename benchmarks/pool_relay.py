"""What passing through the manager costs, against asking the same engine directly, and beside other routers.

    python benchmarks/pool_relay.py [--only vllm|simulated] [--requests 512] [--concurrency 64 256]
                                    [--tokens 128] [--rounds 5] [--hidden-size 128] [--routers VENV/bin]

`vllm`: a real server on the CPU with a random model, which this starts, or `--engine URL`; every way uses the
collector's client (`rl_agent.engine.client`), which asks for whole responses. The model is so small that its
tokens cost next to nothing, which shows a relay's cost at its largest; `--hidden-size 512` makes them dearer.
`simulated`: a streaming engine in a process of its own; the client reads the stream of 8 tokens a chunk.

Client, relay and engine share this machine's cores, so a relay also costs what it takes from them: its CPU
time for 1,000 tokens says how much, on a busy machine too. `vllm-router` and `sglang-router` (PyPI; --routers
is the bin folder of a virtual environment that has them) run in the same rounds. After a round for practice
the order alternates; `of direct` is the median of the ratios to the direct one of the same round.
"""

import argparse
import asyncio
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.wire import Sampling
from tests.integration.conftest import running_server
from tests.integration.tiny_model import make_tiny_model

STREAMING = Path(__file__).resolve().parent.parent / "tests" / "streaming_engine.py"
CHUNK = 8
START_LIMIT_S = 60.0
ROUTERS = {
    "vllm-router": ("vllm-router",),
    "sglang-router": ("python", "-m", "sglang_router.launch_router"),
}

Ask = Callable[[list[int], int], Awaitable[tuple[int, int]]]
"""A prompt and a seed to the number of tokens and of chunks that came back."""
Client = Callable[[str, int], AbstractAsyncContextManager[Ask]]


@dataclass
class Way:
    name: str
    url: str
    relay: int | None = None
    """Process in between."""
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    chunks: int = 0


@contextmanager
def started(*command: str) -> Iterator[tuple[str, int]]:
    """A program that prints its port or URL first: its URL and process."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        yield line if line.startswith("http") else f"http://127.0.0.1:{line}", process.pid
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def routing(folder: Path, name: str, engine: str) -> Iterator[tuple[str, int]]:
    """A router in front of the engine."""
    program, *words = ROUTERS[name]
    port, metrics = free_port(), free_port()
    where = ("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics))
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [str(folder / program), *words, *where, "--worker-urls", engine, "--policy", "round_robin"],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()
            process.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def join(manager: str, engine: str) -> None:
    async with aiohttp.ClientSession() as session:
        body = {"name": engine, "url": engine, "capacity": 4096}
        async with session.post(manager + "/engines", json=body) as answer:
            assert answer.status == 201, await answer.text()
        is_ready = False
        while not is_ready:
            await asyncio.sleep(0.1)
            async with session.get(manager + "/metrics") as answer:
                is_ready = 'state="ready"} 1.0' in await answer.text()


@asynccontextmanager
async def collector(url: str, tokens: int) -> AsyncIterator[Ask]:
    """Whole responses."""
    settings = ClientSettings(request_timeout_s=300, retries=0)
    async with EngineClient(url, settings, identify=lambda served: 0) as client:

        async def ask(prompt: list[int], seed: int) -> tuple[int, int]:
            sampling = Sampling(0.0, 1.0, -1, 0.0, tokens, seed)
            return len((await client.generate(prompt, sampling, request_id=f"r{seed}")).token_ids), 1

        yield ask


@asynccontextmanager
async def reader(url: str, tokens: int) -> AsyncIterator[Ask]:
    """Streamed responses, the chunks of which are counted."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(prompt: list[int], seed: int) -> tuple[int, int]:
            body = {
                "model": "simulated",
                "prompt": prompt,
                "max_tokens": tokens,
                "stream": True,
                "seed": seed,
            }
            body |= {"temperature": 0.0, "return_token_ids": True, "logprobs": 0, "stream_interval": CHUNK}
            async with session.post(url + "/v1/completions", json=body) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"HTTP {answer.status}: {(await answer.text())[:120]}")
                chunks = 0
                async for part in answer.content.iter_any():
                    chunks += part.count(b'"choices"')
            return tokens, chunks

        yield ask


async def load(way: Way, client: Client, requests: int, concurrency: int, tokens: int) -> None:
    """One round."""
    numbers = iter(range(requests))
    async with client(way.url, tokens) as ask:

        async def work() -> None:
            for number in numbers:
                start = time.perf_counter()
                made, chunks = await ask([max(2, tokens), 10 + number % 97, 5, 6], number)
                assert made
                way.chunks += chunks
                way.latencies.append(time.perf_counter() - start)

        before_s, start = cpu_of(way), time.perf_counter()
        async with asyncio.TaskGroup() as jobs:
            for _ in range(concurrency):
                jobs.create_task(work())
        way.seconds.append(time.perf_counter() - start)
        way.cpu_s.append(cpu_of(way) - before_s)


def cpu_of(way: Way) -> float:
    if way.relay is None:
        return 0.0
    parent = psutil.Process(way.relay)
    return sum(sum(one.cpu_times()[:2]) for one in (parent, *parent.children(recursive=True)))


def show(way: Way, concurrency: int, options: argparse.Namespace, direct: "Way | None") -> None:
    rate = options.requests / statistics.median(way.seconds)
    p50, p99 = quantile(way, 0.5), quantile(way, 0.99)
    line = f"{way.name:<14} {concurrency:>11} {rate:>10.0f} {rate * options.tokens:>9.0f}"
    line += f" {way.chunks / sum(way.seconds):>9.0f} {p50:>8.1f} {p99:>8.1f}"
    if direct is not None:
        share = statistics.median(a / b for a, b in zip(direct.seconds, way.seconds, strict=True))
        cpu_ms = 1e3 * statistics.median(way.cpu_s) / (options.requests * options.tokens / 1e3)
        line += f" {p50 - quantile(direct, 0.5):>9.1f} {p99 - quantile(direct, 0.99):>9.1f}"
        line += f" {share:>9.1%} {cpu_ms:>9.1f}"
    print(line, flush=True)


def quantile(way: Way, share: float) -> float:
    return sorted(way.latencies)[int(len(way.latencies) * share)] * 1e3


async def is_usable(way: Way, client: Client, process: int) -> str:
    """Empty, or why not: it must start and pass the same requests on."""
    words, deadline = "", time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and psutil.Process(process).status() != psutil.STATUS_ZOMBIE:
        try:
            async with asyncio.timeout(5), client(way.url, 8) as ask:
                await ask([8, 3, 5, 6], 1)
            return ""
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            await asyncio.sleep(0.5)
    return words or "it ended"


async def compare(ways: list[Way], client: Client, options: argparse.Namespace) -> None:
    print(
        "way            concurrency  requests/s  tokens/s  chunks/s   p50 ms   p99 ms"
        " added p50 added p99 of direct CPU ms/1k"
    )
    for concurrency in options.concurrency:
        for way in ways:
            await load(Way(way.name, way.url), client, concurrency, concurrency, options.tokens)
        found = [Way(way.name, way.url, way.relay) for way in ways]
        for number in range(options.rounds):
            for way in found if number % 2 == 0 else reversed(found):
                await load(way, client, options.requests, concurrency, options.tokens)
        for way in found:
            show(way, concurrency, options, None if way is found[0] else found[0])


@contextmanager
def vllm(options: argparse.Namespace) -> Iterator[str]:
    """A real server's URL."""
    if options.engine:
        yield options.engine
        return
    with tempfile.TemporaryDirectory(prefix="pool-relay-") as folder:
        model = make_tiny_model(Path(folder, "model"), hidden_size=options.hidden_size)
        room = "engine.extra_args.kv-cache-memory-bytes=536870912"
        most = max(options.concurrency)
        with running_server(model, Path(folder, "log"), room, max_num_seqs=most) as plan:
            yield plan.config.engine.base_url


@contextmanager
def simulated(options: argparse.Namespace) -> Iterator[str]:
    words = (str(STREAMING), "--interval", "0.03", "--chunk", str(CHUNK), "--as-asked")
    with started(*words) as (url, _):
        yield url


KINDS: dict[str, tuple[Client, Callable[[argparse.Namespace], AbstractContextManager[str]]]] = {
    "vllm": (collector, vllm),
    "simulated": (reader, simulated),
}


def measure(kind: str, options: argparse.Namespace) -> None:
    client, engine_of = KINDS[kind]
    with ExitStack() as stack:
        engine = stack.enter_context(engine_of(options))
        words = ("-m", "rl_agent.cli", "manager", "port=0", "max_calls_per_s=1e9")
        manager, process = stack.enter_context(started(*words))
        uvloop.run(join(manager, engine))
        ways = [Way("direct", engine), Way("manager", manager, process)]
        for name in ROUTERS if options.routers else ():
            url, process = stack.enter_context(routing(options.routers, name, engine))
            way = Way(name, url, process)
            if problem := uvloop.run(is_usable(way, client, process)):
                print(f"{name} is left out: {problem}", flush=True)
            else:
                ways.append(way)
        print(f"\n{kind}: {options.requests} requests of {options.tokens} tokens, {options.rounds} rounds")
        uvloop.run(compare(ways, client, options))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=sorted(KINDS))
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hidden-size", type=int, default=128, help="of the real server's model")
    parser.add_argument("--engine", help="a real server that runs already")
    parser.add_argument("--routers", type=Path, help="bin folder with vllm-router and sglang-router")
    options = parser.parse_args()
    for kind in KINDS:
        if options.only in (None, kind):
            measure(kind, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
