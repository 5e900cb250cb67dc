"""Twenty engines die within one batch: real vLLM on the CPU, killed outright, started again by their workers.

    python benchmarks/pool/deaths.py [--requests 256] [--engines 3] [--deaths 20] [--out DIR]

A manager and workers as a user starts them (`scripts/join_pool.sh`), a tiny random model. Whenever an engine
has made `--tokens-each` tokens its process group is killed with SIGKILL, under load; its worker says so and
starts it again. The prompts repeat, and the responses are greedy: those to the same prompt must be the same
tokens, however often each was moved. At the end the ledger.
"""

import argparse
import asyncio
import os
import re
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.pool.demo import Demo
from rl_agent.flag_parser import FlagParser
from tests.integration.tiny_model import make_tiny_model

PROMPTS = 32
TOKENS = 200
CAPACITY = 16
LIMIT_S = 3600.0


class Deaths(Demo):
    run_name = "deaths"

    def __init__(self, out: Path, options: argparse.Namespace) -> None:
        super().__init__(out, options.requests)
        self.options = options
        self.killed: Counter[str] = Counter()
        self.seen: set[str] = set()
        """Engines that were killed already, and may not have been missed yet."""

    async def run(self) -> bool:
        model = self.out / "model"
        if not model.exists():
            make_tiny_model(model, hidden_size=128)
        journal = self.out / "journal"
        journal.unlink(missing_ok=True)  # of an earlier run
        words = ("port=0", "request_timeout_s=7200", f"journal={journal}")
        manager = await self.start("manager", sys.executable, "-m", "rl_agent.cli", "manager", *words)
        assert manager.stdout is not None
        self.url = (await manager.stdout.readline()).decode().strip()
        async with aiohttp.ClientSession() as self.session, asyncio.timeout(LIMIT_S):
            for number in range(self.options.engines):
                await self.join(f"engine-{number}", model, capacity=CAPACITY)
            await self.wait_ready(self.options.engines)
            await self.submit()
            async with asyncio.TaskGroup() as jobs:
                killing = jobs.create_task(self.kill_often())
                await self.consume(self.requests)
                killing.cancel()
            return await self.ledger()

    async def submit(self) -> None:
        items = [
            {
                "id": f"request-{number}",
                "prompt_token_ids": [20 + number % PROMPTS, 30, 40, 50],
                "max_tokens": TOKENS,
                "sampling": {"temperature": 0.0, "ignore_eos": True},
            }
            for number in range(self.requests)
        ]
        url = f"{self.url}/runs/{self.run_name}/requests"
        async with self.session.post(url, json={"requests": items}) as answer:
            assert answer.status == 202, await answer.text()
        self.say(f"{self.requests} requests are submitted")

    async def kill_often(self) -> None:
        while sum(self.killed.values()) < self.options.deaths:
            await asyncio.sleep(0.05)
            status = await self.status()
            for engine in status["engines"]:
                is_working = engine["state"] == "ready" and engine["running"]
                if is_working and engine["useful_tokens"] >= self.options.tokens_each:
                    self.kill_one(engine, status)
                    break

    def kill_one(self, engine: dict, status: dict) -> None:
        name = engine["name"]
        if engine["id"] in self.seen or not self.kill_engine(name):
            return
        self.seen.add(engine["id"])
        self.killed[name] += 1
        done = f"{status['requests']['completed']} of {self.requests} answered, {status['tokens']} tokens"
        number = sum(self.killed.values())
        self.say(f"death {number}: {name} with {engine['running']} requests; {done}")

    def kill_engine(self, name: str) -> bool:
        """The newest engine that this worker started; False if it is gone already."""
        pids = re.findall(r"process (\d+)", (self.out / f"{name}.log").read_text())
        try:
            os.killpg(int(pids[-1]), signal.SIGKILL)
        except (ProcessLookupError, IndexError):
            return False
        return True

    async def ledger(self) -> bool:
        status = await self.status()
        counts = Counter(sample["id"] for sample in self.samples)
        completed = sum(sample["is_completed"] for sample in self.samples)
        made = sum(len(sample["token_ids"]) for sample in self.samples)
        moves = status["requests"]["moves"]
        by_prompt: dict[int, set[tuple[int, ...]]] = {}
        for sample in self.samples:
            number = int(sample["id"].rpartition("-")[2]) % PROMPTS
            by_prompt.setdefault(number, set()).add(tuple(sample["token_ids"]))
        different = sum(len(found) - 1 for found in by_prompt.values())
        deaths = sum(self.killed.values())
        lost, twice = self.requests - len(counts), sum(count - 1 for count in counts.values())
        print(
            f"engines killed {deaths} ({dict(self.killed)}), deaths seen {status['engine_deaths']}\n"
            f"requests answered {completed} of {self.requests}, lost {lost}, twice {twice}\n"
            f"moves {moves}, most of one request {max(sample['moves'] for sample in self.samples)}\n"
            f"tokens in answers {made}, received from engines {status['tokens']}:"
            f" {status['tokens'] - made} decoded again after the pool had them\n"
            f"greedy responses that differ from others to the same prompt: {different} of {self.requests}",
            flush=True,
        )
        for sample in self.samples:
            if sample["failure"]:
                print(f"{sample['id']}: {sample['failure']}")
        is_right = completed == self.requests and not lost and not twice and status["tokens"] == made
        return is_right and deaths >= self.options.deaths and not different


async def play(out: Path, options: argparse.Namespace) -> bool:
    deaths = Deaths(out, options)
    try:
        return await deaths.run()
    finally:
        await deaths.stop()


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--engines", type=int, default=3)
    parser.add_argument("--deaths", type=int, default=20)
    parser.add_argument("--tokens-each", type=int, default=600, help="that an engine makes before it dies")
    parser.add_argument("--out", type=Path, help="model and logs; default: a temporary folder")
    options = parser.parse_args()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        return 0 if asyncio.run(play(options.out.resolve(), options)) else 1
    with tempfile.TemporaryDirectory(prefix="pool-deaths-") as folder:
        return 0 if asyncio.run(play(Path(folder), options)) else 1


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
