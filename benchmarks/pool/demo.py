"""A rollout pool on this machine's CPU, watched: two real engines, a batch, one killed, one that joins.

    bash scripts/demo_pool.sh [--requests 256] [--notice] [--out DIR]
    python benchmarks/pool/demo.py                          the same, in an environment that is set up

Everything is what a user would start: the manager, `scripts/join_pool.sh` for each engine, vLLM with a tiny
random model. The kill is SIGKILL to the engine and to its worker, as when a spot machine is taken away.
"""

import asyncio
import json
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.cli.pool import table
from rl_agent.system.flag_parser import FlagParser
from rl_agent.system.owned import end_owned, start_owned
from tests.integration.tiny_model import make_tiny_model

ROOT = Path(__file__).resolve().parents[2]
ENGINE_ARGS = [
    *("--dtype", "float32", "--max-num-seqs", "64", "--max-model-len", "256", "--enforce-eager"),
    *("--kv-cache-memory-bytes", "67108864", "--distributed-executor-backend", "uni"),
    "--no-enable-chunked-prefill",
]
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_TARGET_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
NAMES = ["manager", "engine-a", "engine-b", "engine-c"]
"""Processes in the order of their start."""
CAPACITY = 2
"""Requests at one engine at once: few, so that the batch lasts long enough to be watched."""
TOKENS = 240
KILL_AT = 0.05
JOIN_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 20.0


class Demo:
    run_name = "demo"

    def __init__(self, out: Path, requests: int, *, with_notice: bool = False) -> None:
        self.out = out
        self.requests = requests
        self.with_notice = with_notice
        self.groups: list[asyncio.subprocess.Process] = []
        self.samples: list[dict] = []
        self.started = time.monotonic()

    def say(self, words: str) -> None:
        print(f"[{time.monotonic() - self.started:5.0f} s] {words}", flush=True)

    async def start(self, name: str, *command: str) -> asyncio.subprocess.Process:
        """Start a command in a process group of its own; its stderr goes to a log."""
        with (self.out / f"{name}.log").open("wb") as log:
            process = await start_owned(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **ENVIRONMENT},
                cwd=ROOT,
            )
        self.groups.append(process)
        return process

    async def run(self) -> bool:
        """Return whether every request was answered, and answered once."""
        model = self.out / "model"
        if not model.exists():
            make_tiny_model(model, hidden_size=128)
        manager = await self.start("manager", sys.executable, "-m", "rl_agent.cli", "manager", "port=0")
        assert manager.stdout is not None
        self.url = (await manager.stdout.readline()).decode().strip()
        self.say(
            f"the manager listens on {self.url}; python -m rl_agent.cli pool status --manager {self.url}"
        )
        async with aiohttp.ClientSession() as self.session:
            await self.join("engine-a", model)
            await self.join("engine-b", model)
            self.say("two engines start; this takes half a minute")
            await self.wait_ready(2)
            await self.submit()
            async with asyncio.TaskGroup() as jobs:
                watch = jobs.create_task(self.watch())
                await self.consume(round(KILL_AT * self.requests))
                await self.take_away("engine-b")
                await self.join("engine-c", model)
                self.say("engine-c starts, and will join in the middle of the batch")
                await self.consume(self.requests)
                watch.cancel()
            return await self.account()

    async def join(self, name: str, model: Path, capacity: int = CAPACITY) -> None:
        words = ["--manager", self.url, "--name", name, "--model", str(model), "--capacity", str(capacity)]
        words += ["--log", str(self.out / f"{name}.vllm.log"), f"--engine-args={shlex.join(ENGINE_ARGS)}"]
        await self.start(name, "bash", "scripts/join_pool.sh", *words)

    async def take_away(self, name: str) -> None:
        """The machine is gone: nobody says goodbye, unless there was a notice."""
        if self.with_notice:
            self.groups[NAMES.index(name)].terminate()
            self.say(f"{name} is told to leave, and hands over what it cannot end in time")
            return
        log = (self.out / f"{name}.log").read_text()
        match = re.search(r"process (\d+)", log)
        assert match is not None, log
        os.killpg(self.groups[NAMES.index(name)].pid, signal.SIGKILL)
        os.killpg(int(match[1]), signal.SIGKILL)
        self.say(f"{name} is killed, with the requests that it was working on")

    async def status(self) -> dict:
        async with self.session.get(self.url + "/status") as answer:
            return await answer.json()

    async def wait_ready(self, count: int) -> None:
        ready = 0
        async with asyncio.timeout(JOIN_TIMEOUT_S):
            while ready < count:
                await asyncio.sleep(0.5)
                ready = sum(engine["state"] == "ready" for engine in (await self.status())["engines"])

    async def submit(self) -> None:
        sampling = {"temperature": 1.0, "ignore_eos": True}
        items = [
            {
                "id": f"request-{number}",
                "prompt_token_ids": [20 + number % 100, 30, 40, 50],
                "max_tokens": TOKENS - number % 60,
                "sampling": sampling | {"seed": number},
            }
            for number in range(self.requests)
        ]
        async with self.session.post(self.url + "/runs/demo/requests", json={"requests": items}) as answer:
            assert answer.status == 202, await answer.text()
        self.say(f"{self.requests} requests are submitted")

    async def consume(self, count: int) -> None:
        while len(self.samples) < count:
            cursor = self.samples[-1]["cursor"] if self.samples else 0
            url = f"{self.url}/runs/{self.run_name}/samples?after={cursor}&min=1&wait_s=10"
            async with self.session.get(url) as answer:
                assert answer.status == 200, await answer.text()
                self.samples += [json.loads(line) for line in (await answer.read()).splitlines()]

    async def watch(self) -> None:
        while True:
            shown = table(await self.status())
            if sys.stdout.isatty():
                print("\033[H\033[2J" + shown, flush=True)
            else:
                print(shown + "\n", flush=True)
            await asyncio.sleep(1.0 if sys.stdout.isatty() else 10.0)

    async def account(self) -> bool:
        status = await self.status()
        print(table(status), flush=True)
        counts = Counter(sample["id"] for sample in self.samples)
        completed = sum(sample["is_completed"] for sample in self.samples)
        tokens = sum(len(sample["token_ids"]) for sample in self.samples)
        twice = sum(count - 1 for count in counts.values())
        lost = self.requests - len(counts)
        moved = sum(sample["moves"] > 0 for sample in self.samples)
        self.say(
            f"{completed} of {self.requests}, {lost} lost, {twice} twice; {moved} moved with their tokens;"
            f" {status['tokens'] - tokens} of {tokens} tokens were sampled again"
        )
        return completed == self.requests and not lost and not twice

    async def stop(self) -> None:
        """End what was started, last first."""
        for process in reversed(self.groups):
            await end_owned(process, STOP_TIMEOUT_S)


def watched(demo: Demo) -> int:
    """Exit status."""
    return 0 if asyncio.run(demonstrate(demo)) else 1


async def demonstrate(demo: Demo) -> bool:
    """Run a demonstration; INT, TERM and errors end what it started, a second signal does not stop that."""
    loop = asyncio.get_running_loop()
    job = loop.create_task(demo.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, job.cancel)
    try:
        return await job
    except asyncio.CancelledError:
        demo.say("asked to end before the end")
        return False
    finally:
        await demo.stop()


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--notice", action="store_true", help="the engine is told to leave, not killed")
    parser.add_argument("--out", type=Path, help="model and logs; default: a temporary folder")
    options = parser.parse_args()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        return watched(Demo(options.out.resolve(), options.requests, with_notice=options.notice))
    with tempfile.TemporaryDirectory(prefix="demo-pool-") as folder:
        return watched(Demo(Path(folder), options.requests, with_notice=options.notice))


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
