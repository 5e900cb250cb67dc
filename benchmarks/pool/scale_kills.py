"""Real processes killed under `pool scale`: manager, reconciler and machines, with a provider that fails.

    python benchmarks/pool/scale_kills.py [--seeds 30] [--first 0] [--jobs 2]

A history is a manager with a journal, the command `pool scale --provider command`, 60 requests, and machines
that are processes of this host (`scripts/examples/local_machines.sh`) with simulated engines. For 15 s its
seed draws SIGKILL for each of them, while starts, stops and lists fail, hang or are forgotten. Then all
requests must have ended once, and TERM to `pool scale` must leave no machine of its own, and the strangers'.
"""

import argparse
import asyncio
import json
import os
import random
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.system.flag_parser import FlagParser
from tests.support.pool_setup import expected, item
from tests.support.ports import quiet_port

ROOT = Path(__file__).resolve().parents[2]
LOCAL = ROOT / "scripts/examples/local_machines.sh"
MACHINE = ROOT / "tests/integration/pool/scale/machine.py"
MOST, REQUESTS, TOKENS, TROUBLE_S = 3, 60, 400, 15.0
STRANGERS = ["rl-x-1", "rl-y-1"]
"""Machines of others, one of them named like this fleet's."""
KIND = "{name: spot, price_per_hour: 1.0, min_engines: 1, max_engines: 3, start_s: 3}"
FAULTY = """
sleep=$((RANDOM % 100))
if [ ! -e "$RL_AGENT_LOCAL_MACHINES/calm" ]; then
  case $sleep in
    [0-9]) exit 7 ;;
    1[0-4]) exec sleep 60 ;;
    1[5-9]) case $1 in list) ;; *) exit 0 ;; esac ;;
  esac
fi
exec bash LOCAL "$@"
"""
SCALE = (
    "--poll-s",
    "0.5",
    "--settle-s",
    "4",
    "--drain-s",
    "3",
    "--start-timeout-s",
    "20",
    "--backoff-s",
    "0.5",
)
SCALE += ("--backoff-limit-s", "2", "--call-timeout-s", "2", "--max-engines", str(MOST))


class History:
    """One manager, one fleet and what becomes of them."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.machines = folder / "machines"
        self.port = quiet_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environ = {**os.environ, "RL_AGENT_LOCAL_MACHINES": str(self.machines), "PYTHONPATH": str(ROOT)}
        self.happened: Counter[str] = Counter()
        self.most = 0
        self.seen: list[dict] = []
        self.running: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = await asyncio.create_subprocess_exec(
                *words, env=self.environ, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )

    async def start_manager(self) -> None:
        words = [
            f"port={self.port}",
            f"journal={self.folder}/journal",
            "lease_s=2",
            "heartbeat_s=0.5",
            "journal_interval_s=0.1",
        ]
        words += [
            f"scale.kinds=[{KIND}]",
            "scale.interval_s=0.5",
            "scale.finish_within_s=4",
            "stream_interval=8",
        ]
        words += [
            "scale.raise_after_s=0.5",
            "scale.lower_after_s=2",
            "max_broken_attempts=50",
            "engine_deaths_limit=50",
        ]
        await self.start("manager", sys.executable, "-m", "rl_agent.cli", "manager", *words)

    async def start_scale(self) -> None:
        machine = shlex.join([sys.executable, str(MACHINE)])
        faulty = f"bash {self.folder}/faulty.sh"
        settings = [
            f"start={faulty} start {{name}} {machine} {{manager}} {{name}} {{kind}} {{price}} {self.folder}",
            f"stop={faulty} stop {{name}}",
            f"list={faulty} list",
        ]
        words = ["--provider", "command", "--manager", self.url, "--fleet", "rl-x", *SCALE]
        await self.start("scale", sys.executable, "-m", "rl_agent.cli", "pool", "scale", *words, *settings)

    async def alive(self) -> list[str]:
        """Machines that really run, whatever their provider says."""
        process = await asyncio.create_subprocess_exec(
            "bash", str(LOCAL), "list", env=self.environ, stdout=asyncio.subprocess.PIPE
        )
        return (await process.communicate())[0].decode().split()

    def kill_group(self, name: str) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.running[name].pid, signal.SIGKILL)

    async def run(self) -> None:
        self.machines.mkdir()
        (self.folder / "faulty.sh").write_text(FAULTY.replace("LOCAL", str(LOCAL)))
        for name in STRANGERS:
            stranger = await asyncio.create_subprocess_exec(
                "bash", str(LOCAL), "start", name, "sleep", "600", env=self.environ
            )
            await stranger.wait()
        await self.start_manager()
        await self.start_scale()
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(timeout=timeout) as self.session, asyncio.TaskGroup() as jobs:
            watch = jobs.create_task(self.watch())
            await self.submit()
            await self.trouble()
            (self.machines / "calm").touch()
            async with asyncio.timeout(180):
                while len(self.seen) < REQUESTS:
                    await self.consume()
            watch.cancel()
        self.check()
        await self.leave()

    async def watch(self) -> None:
        while True:
            own = [name for name in await self.alive() if name not in STRANGERS]
            self.most = max(self.most, len(own))
            assert len(own) <= MOST, f"{own} run at once"
            await asyncio.sleep(0.3)

    async def submit(self) -> None:
        body = {"requests": [item(number, TOKENS) for number in range(REQUESTS)]}
        async with asyncio.timeout(60):
            while True:
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with self.session.post(self.url + "/runs/run/requests", json=body) as answer:
                        if answer.status == 202:
                            return
                await asyncio.sleep(0.2)

    async def consume(self) -> None:
        after = self.seen[-1]["cursor"] if self.seen else 0
        with suppress(aiohttp.ClientError, TimeoutError):
            url = f"{self.url}/runs/run/samples?after={after}&min=1&wait_s=2"
            async with self.session.get(url) as answer:
                if answer.status == 200:
                    self.seen += [json.loads(line) for line in (await answer.read()).splitlines()]
                    return
        await asyncio.sleep(0.2)

    async def trouble(self) -> None:
        until = time.monotonic() + TROUBLE_S
        while time.monotonic() < until:
            wait_s = self.random.uniform(0.5, 4.0)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while True:
                        await self.consume()
            victim = self.random.choice(["scale", "scale", "manager", "machine"])
            if victim == "machine":
                own = [name for name in await self.alive() if name not in STRANGERS]
                for name in own[:1]:
                    self.happened["machine killed"] += 1
                    pid = int((self.machines / f"{name}.pid").read_text().split()[0])
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                continue
            self.happened[f"{victim} killed"] += 1
            self.kill_group(victim)
            await self.running[victim].wait()
            await (self.start_scale() if victim == "scale" else self.start_manager())

    def check(self) -> None:
        counts = Counter(sample["id"] for sample in self.seen)
        assert counts == Counter(f"r{number}" for number in range(REQUESTS)), "lost or twice"
        for sample in self.seen:
            assert sample["is_completed"], sample["failure"]
            assert sample["token_ids"] == expected(TOKENS, int(sample["id"][1:]))
        self.happened["requests completed"] += len(self.seen)
        self.happened["of them moved"] += sum(sample["moves"] > 0 for sample in self.seen)

    async def leave(self) -> None:
        scale = self.running["scale"]
        assert scale.returncode is None, "pool scale has ended by itself"
        scale.terminate()
        async with asyncio.timeout(90):
            assert await scale.wait() == 0, "pool scale could not end its machines"
        left = await self.alive()
        assert sorted(left) == STRANGERS, f"left: {left}"
        state = json.loads((self.folder / "pool-scale.json").read_text())
        self.happened["machines asked for"] += state["next_number"] - 1

    async def end(self) -> None:
        """End whatever is left of it."""
        for name in self.running:
            self.kill_group(name)
            await self.running[name].wait()
        for file in self.machines.glob("*.pid"):
            if file.stem in await self.alive():
                with suppress(ProcessLookupError):
                    os.killpg(int(file.read_text().split()[0]), signal.SIGKILL)


async def play(seed: int) -> tuple[Counter[str], int, str]:
    with tempfile.TemporaryDirectory(prefix="scale-kills-") as folder:
        history = History(seed, Path(folder))
        try:
            async with asyncio.timeout(400):
                await history.run()
        except Exception:
            log = (Path(folder) / "scale.log").read_text()[-3000:]
            return history.happened, history.most, traceback.format_exc(limit=-3) + log
        finally:
            await history.end()
        return history.happened, history.most, ""


async def play_all(options: argparse.Namespace) -> int:
    happened: Counter[str] = Counter()
    wrong: list[int] = []
    seeds = iter(range(options.first, options.first + options.seeds))
    began, most = time.monotonic(), 0

    async def player() -> None:
        nonlocal most
        for seed in seeds:
            found, reached, problem = await play(seed)
            happened.update(found)
            most = max(most, reached)
            print(f"seed {seed}: {'wrong' if problem else 'right'}, {dict(found)}", flush=True)
            if problem:
                wrong.append(seed)
                print(problem, flush=True)

    async with asyncio.TaskGroup() as jobs:
        for _ in range(options.jobs):
            jobs.create_task(player())
    for name, count in sorted(happened.items()):
        print(f"{name:<26} {count:>8,}")
    print(f"most machines at once: {most} of {MOST}")
    print(f"{options.seeds} histories in {time.monotonic() - began:.0f} s, {len(wrong)} wrong: {wrong}")
    return 1 if wrong else 0


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    return asyncio.run(play_all(parser.parse_args()))


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
