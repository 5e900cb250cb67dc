"""What passing through the manager costs, against asking the same engine directly.

    python benchmarks/pool_relay.py [--requests 2000] [--concurrency 64 256] [--engine URL] [--tokens 64]

With --engine: a real server; direct is the collector's client (`rl_agent.engine.client`), and so is the
client of the manager. Without: a simulated streaming engine in a process of its own, which shares the cores
with manager and client; direct is then the manager's own link to it (`rl_agent.pool.link`), reading the same
stream. The order alternates; medians of three rounds.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import aiohttp
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.wire import Sampling
from rl_agent.pool.link import EngineLink, HttpTransport

STREAMING = Path(__file__).resolve().parent.parent / "tests" / "streaming_engine.py"
ROUNDS = 3


@contextmanager
def started(*command: str) -> Iterator[str]:
    """A program that prints its port or URL first."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        yield line if line.startswith("http") else f"http://127.0.0.1:{line}"
    finally:
        process.terminate()
        process.communicate()


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


Way = Callable[[int], AbstractAsyncContextManager["Ask"]]
Ask = Callable[[list[int], int], Awaitable[int]]
"""A prompt and a seed to the number of tokens that came back."""


@asynccontextmanager
async def collector(url: str, tokens: int) -> AsyncIterator[Ask]:
    settings = ClientSettings(request_timeout_s=300, retries=0)
    async with EngineClient(url, settings, identify=lambda served: 0) as client:

        async def ask(prompt: list[int], seed: int) -> int:
            sampling = Sampling(0.0, 1.0, -1, 0.0, tokens, seed)
            return len((await client.generate(prompt, sampling, request_id=f"r{seed}")).token_ids)

        yield ask


@asynccontextmanager
async def stream(url: str, tokens: int) -> AsyncIterator[Ask]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        link = EngineLink(HttpTransport(session, url))
        await link.probe()

        async def ask(prompt: list[int], seed: int) -> int:
            chunks = link.generate(prompt, tokens, {"temperature": 0.0, "seed": seed}, f"r{seed}")
            return sum([len(chunk.token_ids) async for chunk in chunks])

        yield ask


async def load(way: Way, requests: int, concurrency: int, tokens: int) -> tuple[float, list[float]]:
    """Seconds in all, and of each request."""
    latencies: list[float] = []
    numbers = iter(range(requests))
    async with way(tokens) as ask:

        async def work() -> None:
            for number in numbers:
                start = time.perf_counter()
                found = await ask([max(2, tokens), 10 + number % 97, 5, 6], number)
                assert found
                latencies.append(time.perf_counter() - start)

        start = time.perf_counter()
        async with asyncio.TaskGroup() as jobs:
            for _ in range(concurrency):
                jobs.create_task(work())
        return time.perf_counter() - start, latencies


def show(name: str, concurrency: int, tokens: int, found: list[tuple[float, list[float]]]) -> float:
    rates = [len(latencies) / seconds for seconds, latencies in found]
    every = sorted(value for _, latencies in found for value in latencies)
    p50, p99 = every[len(every) // 2] * 1e3, every[int(len(every) * 0.99)] * 1e3
    rate = statistics.median(rates)
    print(
        f"{name:<22} {concurrency:>11} {rate:>10.0f} {rate * tokens:>12.0f} {p50:>9.1f} {p99:>9.1f}",
        flush=True,
    )
    return rate


async def compare(ways: dict[str, Way], options: argparse.Namespace) -> None:
    print("way                    concurrency  requests/s     tokens/s    p50 ms    p99 ms")
    for concurrency in options.concurrency:
        found: dict[str, list[tuple[float, list[float]]]] = {name: [] for name in ways}
        for number in range(ROUNDS):
            order = list(ways) if number % 2 == 0 else list(reversed(ways))
            for name in order:
                found[name].append(await load(ways[name], options.requests, concurrency, options.tokens))
        rates = {name: show(name, concurrency, options.tokens, found[name]) for name in ways}
        direct = rates["direct"]
        shares = ", ".join(f"{name} {rate / direct:.1%}" for name, rate in rates.items() if name != "direct")
        print(f"    of direct: {shares}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--engine", help="a real server; default: simulated ones")
    options = parser.parse_args()
    with ExitStack() as stack:
        words = ("-m", "rl_agent.cli", "manager", "port=0", "max_calls_per_s=1e9")
        manager = stack.enter_context(started(*words))
        engine = options.engine
        if engine is None:
            interval = ("--interval", "0.03", "--chunk", "8")
            engine = stack.enter_context(started(str(STREAMING), *interval))
        uvloop.run(join(manager, engine))
        direct = partial(collector if options.engine else stream, engine)
        uvloop.run(compare({"direct": direct, "manager": partial(collector, manager)}, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
