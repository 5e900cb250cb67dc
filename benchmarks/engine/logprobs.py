"""Measures the cost to one engine of the sampled tokens' logprobs, by each way of asking for them.

    python benchmarks/engine/logprobs.py --shape 1.7b   on a GPU: Qwen3-1.7B's shape, 2 to 4 minutes
    python benchmarks/engine/logprobs.py                on a CPU: a toy, whose own time is short

    none            /inference/v1/generate, whole, without logprobs: the engine alone
    completions     /v1/completions, streamed with text: as any vLLM is asked that has no route of ours
    packed          /v1/packed_tokens, streamed in portions of --interval
    packed whole    the same for a response that is sent whole

All requests of a round run at the same time, and all responses have --tokens. Each way has a round, then each
in the opposite order, and so on. Every answer is read by the pool's own reader and checker, in this process.

    cores   processor seconds of a second: the API process, and the engine's (on a CPU without its worker's)
    us      processor time for a token, of either

Weights are random: this measures speed, never learning. A vLLM before 0.28 takes no interval from a request
for JSON, so that the server is started with --stream-interval.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp
import psutil
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "data"))

from tiny_tokenizer import TURN_END, save_tokenizer, train_tokenizer

from benchmarks.trainer.qwen3_shapes import SHAPES as QWEN3_SHAPES
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.engine.server import VLLM_SERVE
from rl_agent.pool.engines.adapters import ADAPTERS, TokensRequest
from rl_agent.pool.engines.answers import AnswerCheck
from rl_agent.system.flag_parser import FlagParser
from rl_agent.system.owned import end_owned, start_owned

TOY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
TOY |= {"num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512}
SHAPES: dict[str, dict[str, Any]] = {"toy": TOY, "1.7b": QWEN3_SHAPES["1.7b"]}
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
CPU_WORDS = (
    *("--enforce-eager", "--kv-cache-memory-bytes", "268435456", "--no-enable-chunked-prefill"),
    *("--distributed-executor-backend", "uni"),
)
CPU_ENVIRONMENT = {"VLLM_TARGET_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
START_S = 600.0


@dataclass(frozen=True, slots=True)
class Round:
    tokens_per_s: float
    api_s: float
    """Processor seconds of the API process for a token."""
    engine_s: float
    wire_bytes: float
    """Bytes of the answers for a token."""


@dataclass(frozen=True, slots=True)
class Server:
    session: aiohttp.ClientSession
    url: str
    pid: int
    model: str

    def processor_s(self) -> tuple[float, float]:
        """Return the processor time of the API process, and of the engine's process, so far."""
        api = psutil.Process(self.pid)
        engine = [child for child in api.children() if "resource_tracker" not in " ".join(child.cmdline())]
        return used_s(api), sum(map(used_s, engine))


def used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


Ask = Callable[[Server, list[int], int, str], Any]


def by(kind: str, interval: int | None) -> Ask:
    """Return what asks as the pool does by one of its adapters; it returns the bytes of the answer."""

    async def ask(server: Server, prompt: list[int], tokens: int, name: str) -> int:
        adapter = ADAPTERS[kind]
        params = SAMPLING | {"ignore_eos": True, "seed": prompt[0]}
        chosen = TokensRequest(server.model, prompt, tokens, params, name, interval)
        reader, splitter = adapter.reader(token_by_token=False), adapter.splitter(chosen)
        check, seen, size = AnswerCheck(tokens, None), 0, 0
        async with server.session.post(server.url + adapter.path, data=adapter.body(chosen)) as answer:
            assert answer.status == 200, await answer.text()
            while part := await (answer.read() if splitter is None else answer.content.readany()):
                size += len(part)
                for event in [part] if splitter is None else splitter.feed(part):
                    for chunk in () if event == b"[DONE]" else reader.read(event):
                        check.admit(chunk)
                        seen += len(chunk.token_ids)
                if splitter is None:
                    break
        assert seen == tokens, f"{seen} of {tokens} tokens"
        return size

    return ask


async def without(server: Server, prompt: list[int], tokens: int, name: str) -> int:
    sampling = SAMPLING | {"ignore_eos": True, "seed": prompt[0], "max_tokens": tokens}
    sampling |= {"detokenize": False, "output_kind": 2}
    body = {"model": server.model, "token_ids": prompt, "request_id": name, "sampling_params": sampling}
    async with server.session.post(server.url + "/inference/v1/generate", json=body) as answer:
        payload = await answer.read()
    assert len(json.loads(payload)["choices"][0]["token_ids"]) == tokens, payload[:500]
    return len(payload)


def ways(interval: int) -> dict[str, Ask]:
    return {
        "none": without,
        "completions": by("vllm", interval),
        "packed": by("packed", interval),
        "packed whole": by("packed", None),
    }


async def measure(server: Server, ask: Ask, options: argparse.Namespace, name: str, requests: int) -> Round:
    """Run a round; its prompts are like no others, so that no cache helps."""
    drawn = random.Random(name)
    vocabulary = SHAPES[options.shape]["vocab_size"]
    prompts = [[drawn.randrange(5, vocabulary) for _ in range(options.prompt)] for _ in range(requests)]
    before, began = server.processor_s(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        jobs = [
            group.create_task(ask(server, prompt, options.tokens, f"{name}-{number}"))
            for number, prompt in enumerate(prompts)
        ]
    elapsed_s, after = time.perf_counter() - began, server.processor_s()
    tokens = requests * options.tokens
    api_s, engine_s = ((end - start) / tokens for start, end in zip(before, after, strict=True))
    return Round(tokens / elapsed_s, api_s, engine_s, sum(job.result() for job in jobs) / tokens)


def make_model(folder: Path, shape: str) -> None:
    """Write a model without weights, and a tokenizer in which every id has a text."""
    tokenizer = train_tokenizer(f"What is {a} + {b}? Answer: {a + b}" for a in range(30) for b in range(30))
    state = json.loads(tokenizer.to_str())
    vocabulary, size = state["model"]["vocab"], SHAPES[shape]["vocab_size"]
    vocabulary |= {f"Ġw{number}": number for number in range(len(vocabulary), size)}
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True}
    config |= {"max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
    config |= {"attention_bias": False, "eos_token_id": tokenizer.token_to_id(TURN_END)} | SHAPES[shape]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_tokenizer(Tokenizer.from_str(json.dumps(state)), folder, max_length=40_960)


async def started(words: list[str], log: BinaryIO, environment: dict[str, str], url: str) -> Any:
    process = await start_owned(*words, orphan_signal=signal.SIGTERM, env=environment, stdout=log, stderr=log)
    deadline = time.monotonic() + START_S
    async with aiohttp.ClientSession() as session:
        while process.returncode is None and time.monotonic() < deadline:
            try:
                async with session.get(url + "/health") as answer:
                    if answer.status == 200:
                        return process
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)
    await end_owned(process, 10)
    raise SystemExit(f"vLLM did not start: {log.name}")


def command(options: argparse.Namespace, model: Path, port: int) -> tuple[list[str], dict[str, str]]:
    """Return the server's words and environment."""
    room, is_cpu = options.prompt + options.tokens, options.shape == "toy"
    words = [sys.executable, *VLLM_SERVE, str(model), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--load-format", "dummy", "--max-model-len", str(room), "--max-num-seqs", str(options.requests)]
    words += ["--dtype", "float32" if is_cpu else "bfloat16"]
    words += ["--stream-interval", str(options.interval), *(CPU_WORDS if is_cpu else ())]
    root = str(Path(__file__).resolve().parents[2])
    path = ":".join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, **(CPU_ENVIRONMENT if is_cpu else {})}
    return words + options.engine_args.split(), environment


async def run(options: argparse.Namespace, model: Path, log: BinaryIO) -> dict[str, list[Round]]:
    port = free_port("127.0.0.1")
    words, environment = command(options, model, port)
    url = f"http://127.0.0.1:{port}"
    process = await started(words, log, environment, url)
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)  # less than the server's
    chosen = {name: ask for name, ask in ways(options.interval).items() if name in options.ways}
    rounds: dict[str, list[Round]] = {name: [] for name in chosen}
    headers = {"Content-Type": "application/json"}
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
            server = Server(session, url, process.pid, str(model))
            for name, ask in chosen.items():
                await measure(server, ask, options, f"warm {name}", 4)
            for number in range(options.rounds):
                for name in list(chosen)[:: -1 if number % 2 else 1]:
                    figures = await measure(
                        server, chosen[name], options, f"{number} {name}", options.requests
                    )
                    rounds[name].append(figures)
                    print(f"round {number + 1}: {name}: {figures.tokens_per_s:,.0f} tokens/s", flush=True)
    finally:
        await end_owned(process, 10)
    return rounds


def show(rounds: dict[str, list[Round]]) -> None:
    middle = {
        name: [statistics.median(getattr(r, field) for r in of) for field in Round.__slots__]
        for name, of in rounds.items()
    }
    first, before = next(iter(middle.values()))[0], middle.get("completions", [0.0])[0]
    print("\n| way | tokens/s | of the first | of completions | API cores, us | engine cores, us | bytes |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, (speed, api_s, engine_s, size) in middle.items():
        ratio = f"{speed / before:.2f}" if before else ""
        shares = (f"{speed * each:.2f}, {each * 1e6:.1f}" for each in (api_s, engine_s))
        cells = [name, f"{speed:,.0f}", f"{speed / first:.2f}", ratio, *shares, f"{size:.0f}"]
        print(f"| {' | '.join(cells)} |")


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="toy")
    parser.add_argument("--ways", nargs="+", choices=ways(1), default=list(ways(1)))
    parser.add_argument("--requests", type=int, help="at the same time (default 448; toy: 128)")
    parser.add_argument("--tokens", type=int, help="of a response (default 512; toy: 200)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--interval", type=int, default=128, help="tokens that are sent together")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--engine-args", default="", help="further words for vLLM")
    parser.add_argument("--log", type=Path, default=Path("vllm.log"), help="the engine's log")
    options = parser.parse_args()
    is_toy = options.shape == "toy"
    options.requests = options.requests or (128 if is_toy else 448)
    options.tokens = options.tokens or (200 if is_toy else 512)
    with tempfile.TemporaryDirectory() as folder, options.log.open("wb") as log:
        make_model(Path(folder, "model"), options.shape)
        show(asyncio.run(run(options, Path(folder, "model"), log)))
    return 0


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
