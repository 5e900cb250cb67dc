"""A pool that grows while its rollouts get longer, and shrinks again: engines over time, with the reasons.

    python benchmarks/pool/autoscale_demo.py [--simulated] [--out DIR]

A manager, `pool scale`, and waves of requests whose responses grow from 30 to 230 tokens:
a tiny model at real vLLM engines on the CPU, or `--simulated` engines. Once three serve, one gets SIGKILL
with its worker. At the end the fleet has to be back at one engine, with no request lost or sampled twice and
no machine left. The picture is OUT/engines.svg, its points OUT/engines.jsonl.
"""

import argparse
import asyncio
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.pool.demo import ENGINE_ARGS, ENVIRONMENT, ROOT, Demo, watched
from rl_agent.system.flag_parser import FlagParser
from rl_agent.system.processes import ProcessId
from tests.integration.tiny_model import make_tiny_model

MOST, WAVES = 3, 9
END_TIMEOUT_S = 300.0
MACHINE = ROOT / "tests/integration/pool/scale/machine.py"
LOCAL_MACHINES = ROOT / "scripts/examples/local_machines.sh"


class AutoscaleDemo(Demo):
    """`each` is the number of requests of a wave: one real engine samples a small one in seconds."""

    run_name = "growing"

    def __init__(self, out: Path, options: argparse.Namespace) -> None:
        self.each = 24 if options.simulated else 192
        super().__init__(out, WAVES * self.each)
        self.options = options
        self.points: list[dict[str, Any]] = []
        self.killed_at: float | None = None
        self.machines = out / "machines"

    async def run(self) -> bool:
        """Return whether every request was answered once, and the fleet came, shrank and went."""
        model = self.out / "model"
        if not (self.options.simulated or model.exists()):
            make_tiny_model(model, hidden_size=128)
        os.environ.update(ENVIRONMENT, RL_AGENT_LOCAL_MACHINES=str(self.machines))
        start_s = 3 if self.options.simulated else 25
        kind = f"{{name: cpu, price_per_hour: 0.1, min_engines: 1, max_engines: {MOST}, start_s: {start_s}}}"
        words = ["port=0", f"journal={self.out}/pool.sqlite", f"scale.kinds=[{kind}]", "scale.interval_s=1"]
        words += ["scale.finish_within_s=6", "scale.raise_after_s=5", "scale.lower_after_s=30"]
        manager = await self.start("manager", sys.executable, "-m", "rl_agent.cli", "manager", *words)
        assert manager.stdout is not None
        self.url = (await manager.stdout.readline()).decode().strip()
        scale = await self.start_scale(self.machine_words(model))
        self.say(f"the manager listens on {self.url}; `pool scale` starts the first engine")
        async with aiohttp.ClientSession() as self.session:
            async with asyncio.TaskGroup() as jobs:
                watch = jobs.create_task(self.watch())
                await self.wait_ready(1)
                await self.waves()
                await self.wait_for_one()
                watch.cancel()
            self.say("one engine is left; `pool scale` is told to leave")
            is_right = await self.account()
        scale.terminate()
        async with asyncio.timeout(END_TIMEOUT_S):
            is_ended = await scale.wait() == 0
        self.draw()
        most = max(point["ready"] for point in self.points)
        self.say(f"most engines {most} of {MOST}; all machines ended: {is_ended}; {self.out}/engines.svg")
        return is_right and is_ended and most == MOST and self.killed_at is not None

    def machine_words(self, model: Path) -> list[str]:
        own, options = self.out, self.options
        if options.simulated:
            machine = [
                sys.executable,
                str(MACHINE),
                "{manager}",
                "{name}",
                "{kind}",
                "{price}",
                str(own),
                "0.05",
            ]
        else:
            machine = ["bash", f"{ROOT}/scripts/join_pool.sh", "--manager", "{manager}", "--name", "{name}"]
            machine += ["--kind", "{kind}", "--price", "{price}", "--model", str(model), "--capacity", "1"]
            machine += ["--log", f"{own}/{{name}}.vllm.log", f"--engine-args={shlex.join(ENGINE_ARGS)}"]
        return machine

    async def start_scale(self, machine: Sequence[str]) -> asyncio.subprocess.Process:
        """Start `pool scale`, whose machines run this command."""
        words = [sys.executable, "-m", "rl_agent.cli", "pool", "scale", "--provider", "command"]
        words += ["--manager", self.url, "--state", f"{self.out}/pool-scale.json"]
        words += ["--poll-s", "1", "--settle-s", "5", "--drain-s", "20"]
        local = f"bash {LOCAL_MACHINES}"
        words += [f"start={local} start {{name}} {shlex.join(machine)}"]
        words += [f"stop={local} stop {{name}}", f"list={local} list"]
        return await self.start("scale", *words)

    async def stop(self) -> None:
        """End what was started and the machines too, which lead process groups of their own."""
        await super().stop()
        for file in self.machines.glob("*.pid"):
            leader = ProcessId(*map(int, file.read_text().split()))
            if leader.is_running:
                with suppress(ProcessLookupError):
                    os.killpg(leader.pid, signal.SIGKILL)  # its engine ends with it

    async def waves(self) -> None:
        """Submit wave after wave, each with longer responses; the last ones are short again."""
        for wave in range(WAVES):
            tokens = 30 + 40 * min(wave, 5) if wave < WAVES - 2 else 30
            items = [self.item(wave * self.each + number, tokens) for number in range(self.each)]
            url = f"{self.url}/runs/{self.run_name}/requests"
            async with self.session.post(url, json={"requests": items}) as answer:
                assert answer.status == 202, await answer.text()
            self.say(f"wave {wave + 1} of {WAVES}: {self.each} responses of {tokens} tokens")
            await self.consume((wave + 1) * self.each)

    def item(self, number: int, tokens: int) -> dict[str, Any]:
        sampling: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True, "seed": number}
        prompt = [tokens, number, 5, 6] if self.options.simulated else [20 + number % 100, 30, 40, 50]
        return {
            "id": f"request-{number}",
            "prompt_token_ids": prompt,
            "max_tokens": tokens,
            "sampling": sampling,
        }

    async def watch(self) -> None:
        """Note a point per second, and take a machine away once all serve."""
        while True:
            with suppress(aiohttp.ClientError):
                self.points.append(self.point(await self.status()))
            if self.killed_at is None and self.points and self.points[-1]["ready"] == MOST:
                self.killed_at = self.points[-1]["at_s"]
                self.take_newest_away()
            await asyncio.sleep(1.0)

    def point(self, status: dict[str, Any]) -> dict[str, Any]:
        states = [engine["state"] for engine in status["engines"]]
        wanted = status["wanted"]
        return {
            "at_s": round(time.monotonic() - self.started, 1),
            "ready": states.count("ready"),
            "draining": states.count("draining"),
            "wanted": wanted["counts"].get("cpu", 0),
            "reason": wanted["reason"],
        }

    def take_newest_away(self) -> None:
        """SIGKILL for a machine's process group; its engine goes with its worker."""
        state = json.loads((self.out / "pool-scale.json").read_text())
        newest = [name for name, fields in state["machines"].items() if fields["stage"] == "joined"][-1]
        leader = int((self.machines / f"{newest}.pid").read_text().split()[0])
        os.killpg(leader, signal.SIGKILL)
        self.say(f"{newest} is killed, with what it was working on")

    async def wait_for_one(self) -> None:
        """Wait until all but one engine were given back."""
        async with asyncio.timeout(END_TIMEOUT_S):
            while self.points[-1]["ready"] + self.points[-1]["draining"] > 1:  # noqa: ASYNC110 - by `watch`
                await asyncio.sleep(0.5)

    def draw(self) -> None:
        """Draw engines over time; a reason stands where it led to another number."""
        import matplotlib

        matplotlib.use("svg")
        from matplotlib import pyplot

        pyplot.rcParams["svg.fonttype"] = "none"  # words stay words: the picture is small and can be searched

        lines = [json.dumps(point) for point in self.points]
        (self.out / "engines.jsonl").write_text("\n".join(lines) + "\n")
        figure, axes = pyplot.subplots(figsize=(9, 5), layout="tight")
        at = [point["at_s"] for point in self.points]
        for name, style in (("wanted", "--"), ("ready", "-")):
            axes.step(at, [point[name] for point in self.points], style, where="post", label=name)
        before = None
        for point in self.points:
            if point["wanted"] != before:
                words = point["reason"][:70]
                axes.annotate(words, (point["at_s"], point["wanted"]), rotation=30, fontsize=7)
            before = point["wanted"]
        if self.killed_at is not None:
            axes.axvline(self.killed_at, color="tab:red", label="SIGKILL")
        axes.set(xlabel="seconds", ylabel="engines", ylim=(0, MOST + 3))
        axes.legend(loc="upper left")
        figure.savefig(self.out / "engines.svg", metadata={"Date": None})
        pyplot.close(figure)


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--simulated", action="store_true", help="engines that need no model and no time")
    parser.add_argument("--out", type=Path, help="model, logs, picture; default: a temporary folder")
    options = parser.parse_args()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        return watched(AutoscaleDemo(options.out.resolve(), options))
    with tempfile.TemporaryDirectory(prefix="demo-autoscale-") as folder:
        return watched(AutoscaleDemo(Path(folder), options))


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
