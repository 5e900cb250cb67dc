"""Measures a request through the manager beside the same engine asked directly, and beside other routers.

    python benchmarks/pool/relay.py [--only vllm|simulated] [--load burst closed] [--concurrency 64 256]
                                    [--times 4] [--tokens 128] [--rounds 5] [--hidden-size 128]
                                    [--routers VENV/bin]

Two loads of N concurrent requests, `--times` N of them in a round: `burst` asks N of one length at once,
and the next N when all of them have ended; `closed` keeps N of long-tailed lengths in flight, as `vllm
bench serve --max-concurrency N` does, and asks for one more whenever one has ended.

`vllm`: a real server on the CPU with a random model, which this starts, or `--engine URL`; every way uses
the collector's client (`rl_agent.engine.client`), which asks for whole responses; like the collector it
makes the text itself where the manager then asks by tokens. The model is so small
that its tokens cost next to nothing, which shows a relay's cost at its largest; `--hidden-size 512` makes
them dearer. `simulated`: a streaming engine in a process of its own; the client reads the stream of 8
tokens a chunk.

Client, relay and engine share this machine's cores, so a relay also costs what it takes from them: its CPU
time for a request and for 1,000 tokens says how much, on a busy machine too. `vllm-router` and
`sglang-router` (PyPI; --routers is the bin folder of a virtual environment that has them) run in the same
rounds. After a round for practice the order alternates; `of direct` is the median of the ratios of tokens/s
to the direct one of the same round, `from` and `to` are the lowest and the highest of them.
"""

import argparse
import asyncio
import random
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
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import aiohttp
import psutil
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.wire import Sampling
from rl_agent.system.flag_parser import FlagParser

STREAMING = Path(__file__).resolve().parents[2] / "tests" / "support" / "streaming_engine.py"
CHUNK = 8
START_LIMIT_S = 60.0
ROUTERS = {
    "vllm-router": ("vllm-router",),
    "sglang-router": ("python", "-m", "sglang_router.launch_router"),
}

Ask = Callable[[int, int], Awaitable[tuple[int, int]]]
"""A number and a length to the number of tokens and of chunks that came back."""
Client = Callable[[str], AbstractAsyncContextManager[Ask]]
LOADS = ("burst", "closed")


@dataclass
class Way:
    name: str
    url: str
    relay: int | None = None
    """Process in between."""
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    chunks: int = 0

    @property
    def rates(self) -> list[float]:
        """Tokens per second of each round."""
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True)]


@dataclass(frozen=True)
class Load:
    kind: str
    concurrency: int
    lengths: tuple[int, ...]
    """Lengths of the responses of a round."""


def load_of(kind: str, concurrency: int, options: argparse.Namespace) -> Load:
    count, usual = concurrency * options.times, options.tokens
    if kind == "burst":
        return Load(kind, concurrency, (usual,) * count)
    drawn = random.Random(0)
    lengths = (int(drawn.lognormvariate(0, 0.8) * usual / 2) for _ in range(count))
    return Load(kind, concurrency, tuple(min(max(8, length), 2 * usual - 16) for length in lengths))


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


async def join(manager: str, engine: str) -> str:
    """Return the id of an engine when it is the only one that is ready."""
    async with aiohttp.ClientSession() as session:
        body = {"name": engine, "url": engine, "capacity": 4096}
        async with session.post(manager + "/engines", json=body) as answer:
            assert answer.status == 201, await answer.text()
            engine_id = str((await answer.json())["engine_id"])
        is_ready = False
        while not is_ready:
            await asyncio.sleep(0.1)
            async with session.get(manager + "/metrics") as answer:
                is_ready = 'state="ready"} 1.0' in await answer.text()
    return engine_id


@asynccontextmanager
async def collector(url: str) -> AsyncIterator[Ask]:
    """Whole responses, with their text; of an engine or another router, what `/v1/completions` gives."""
    settings = ClientSettings(request_timeout_s=300, retries=0)
    async with EngineClient(url, settings, identify=lambda served: 0) as client:
        chat = ChatTokenizer.load(client.served.root, {})

        async def ask(number: int, tokens: int) -> tuple[int, int]:
            sampling = Sampling(0.0, 1.0, -1, 0.0, tokens, number)
            response = await client.generate(
                prompt_of(number, tokens), sampling, request_id=f"r{number}", decode=chat.decode_after
            )
            return len(response.token_ids), 1

        yield ask


@asynccontextmanager
async def reader(url: str) -> AsyncIterator[Ask]:
    """Streamed responses, the chunks of which are counted."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(number: int, tokens: int) -> tuple[int, int]:
            body = {
                "model": "simulated",
                "prompt": prompt_of(number, tokens),
                "max_tokens": tokens,
                "stream": True,
                "seed": number,
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


def prompt_of(number: int, tokens: int) -> list[int]:
    """The simulated engine takes the first for the length of its response."""
    return [tokens, 10 + number % 97, 5, 6]


async def load(way: Way, client: Client, wanted_load: Load) -> None:
    """One round."""
    made_in_all = 0
    async with client(way.url) as ask:

        async def listener(number: int, tokens: int) -> None:
            nonlocal made_in_all
            start = time.perf_counter()
            response, chunks = await ask(number, tokens)
            assert response
            made_in_all += response
            way.chunks += chunks
            way.latencies.append(time.perf_counter() - start)

        async def work(numbers: Iterator[tuple[int, int]]) -> None:
            for number, tokens in numbers:
                await listener(number, tokens)

        before_s, start = cpu_of(way), time.perf_counter()
        rest = enumerate(wanted_load.lengths)
        for _ in range(
            1 if wanted_load.kind == "closed" else len(wanted_load.lengths) // wanted_load.concurrency
        ):
            wave = rest if wanted_load.kind == "closed" else islice(rest, wanted_load.concurrency)
            async with asyncio.TaskGroup() as jobs:
                for _ in range(wanted_load.concurrency):
                    jobs.create_task(work(wave))
        way.seconds.append(time.perf_counter() - start)
        way.cpu_s.append(cpu_of(way) - before_s)
        way.tokens.append(made_in_all)


def cpu_of(way: Way) -> float:
    if way.relay is None:
        return 0.0
    parent = psutil.Process(way.relay)
    return sum(sum(listener.cpu_times()[:2]) for listener in (parent, *parent.children(recursive=True)))


def show(way: Way, wanted_load: Load, direct: "Way | None") -> None:
    count = len(wanted_load.lengths)
    p50, p99 = quantile(way, 0.5), quantile(way, 0.99)
    per_s, chunks_per_s = count / statistics.median(way.seconds), way.chunks / sum(way.seconds)
    line = f"{way.name:<14}{wanted_load.kind:>7} {wanted_load.concurrency:>11} {per_s:>10.0f}"
    line += f" {statistics.median(way.rates):>8.0f} {chunks_per_s:>8.0f} {p50:>7.0f} {p99:>7.0f}"
    if direct is not None:
        shares = [ours / theirs for ours, theirs in zip(way.rates, direct.rates, strict=True)]
        cpu_ms = [1e3 * seconds for seconds in way.cpu_s]
        of_one = statistics.median(cpu_ms) / count
        of_1k = statistics.median(ms / tokens * 1e3 for ms, tokens in zip(cpu_ms, way.tokens, strict=True))
        line += f" {p50 - quantile(direct, 0.5):>9.0f} {p99 - quantile(direct, 0.99):>9.0f}"
        line += f" {statistics.median(shares):>9.1%} {min(shares):>6.1%} {max(shares):>6.1%}"
        line += f" {of_one:>10.2f} {of_1k:>9.1f}"
    print(line, flush=True)


def quantile(way: Way, share: float) -> float:
    return sorted(way.latencies)[int(len(way.latencies) * share)] * 1e3


async def is_usable(way: Way, client: Client, process: int) -> str:
    """Empty, or why not: it must start and pass the same requests on."""
    words, deadline = "", time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and psutil.Process(process).status() != psutil.STATUS_ZOMBIE:
        try:
            async with asyncio.timeout(5), client(way.url) as ask:
                await ask(1, 8)
            return ""
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            await asyncio.sleep(0.5)
    return words or "it ended"


async def compare(ways: list[Way], client: Client, options: argparse.Namespace) -> None:
    print(
        "way              load concurrency requests/s tokens/s chunks/s  p50 ms  p99 ms"
        " added p50 added p99 of direct   from     to CPU ms/req CPU ms/1k"
    )
    for wanted_load in [
        load_of(kind, size, options) for size in options.concurrency for kind in options.load
    ]:
        practice = replace(wanted_load, lengths=wanted_load.lengths[: wanted_load.concurrency])
        for way in ways:
            await load(Way(way.name, way.url), client, practice)
        copies = [Way(way.name, way.url, way.relay) for way in ways]
        for number in range(options.rounds):
            for way in copies if number % 2 == 0 else reversed(copies):
                await load(way, client, wanted_load)
        for way in copies:
            show(way, wanted_load, None if way is copies[0] else copies[0])


@contextmanager
def vllm(options: argparse.Namespace) -> Iterator[str]:
    """A real server's URL."""
    if options.engine:
        yield options.engine
        return
    from tests.integration.conftest import running_server
    from tests.integration.tiny_model import make_tiny_model

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
        words = ("-m", "rl_agent.cli", "manager", "port=0")
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
        print(
            f"\n{kind}: {options.rounds} rounds; tokens of a response: {options.tokens}, closed: long-tailed"
        )
        uvloop.run(compare(ways, client, options))


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(KINDS))
    parser.add_argument("--load", choices=LOADS, nargs="+", default=list(LOADS))
    parser.add_argument("--times", type=int, default=4, help="requests of a round, in times the concurrency")
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
    from rl_agent.system.terminal import run_script

    run_script(main)
