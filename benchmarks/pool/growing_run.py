"""A GRPO run whose responses get longer because that is rewarded: engines come, one is killed, they go again.

    python benchmarks/pool/growing_run.py --gpu 0 --shape small   # trainer and engines on one GPU
    python benchmarks/pool/growing_run.py                         # on a CPU, slowly
    python benchmarks/pool/growing_run.py --provider ray          # engines are actors of a Ray cluster

`scripts/run.sh` with `trainer=grpo pool=elastic` starts no engine of its own; `pool scale` starts as many
as the run's manager wants, at first one. Rewarded are responses of `LONG` of the longest: the policy learns
to go on, the trainer waits longer, and more engines are wanted. Once three serve, one gets SIGKILL with its
worker. When another one has come, shortness is rewarded, until fewer engines serve and that has not changed
for a minute; then the run gets SIGINT. The model is random and says nothing: only its lengths mean
something.

A table of iterations is printed. The picture is OUT/engines.svg, its points OUT/engines.jsonl.
"""

import argparse
import asyncio
import json
import os
import re
import shlex
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.pool.autoscale_demo import MOST, AutoscaleDemo, add_provider
from benchmarks.pool.demo import ENVIRONMENT, ROOT, Demo, watched
from benchmarks.trainer.stream_loop import make_model
from benchmarks.trainer.throughput import SHAPES
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.flag_parser import FlagParser
from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from rl_agent.types import Observation, StepResult, Task

SIBLINGS = 8
LONG = 0.6
"""Share of the longest response: were all cut off alike, none would be better and nothing be learned."""
NEVER = -1000.0
"""Entry of a token's embedding in the dimension that is the same for all texts."""
TOKEN = re.compile(r"<\|\w+\|>| w\d{3}| ?[A-Z]?[a-z]+|.", re.DOTALL)
"""Of the model's tokenizer, about."""
STOP_TIMEOUT_S = 120.0
SETTLED_S = 60.0
"""For so long as many must have been wanted and have served."""
CHANGE_TIMEOUT_S = 900.0
"""Responses get shorter within it, and engines are given back, or the run has not shown what it is for."""


def hide_unreadable(folder: Path) -> None:
    """Make tokens that are no text by themselves, such as a byte of a letter, as good as impossible."""
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer

    weights = load_file(folder / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for token in range(len(embedding)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        if not (text.isascii() and (text.isprintable() or text == "\n")):
            embedding[token] = 0
            embedding[token, 0] = NEVER
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


class Length:
    """One turn; the reward is how near the response is to `LONG`, or to 0 once the file `short` exists.

    Tokens count, not characters: else the policy learns to say much in tokens that are hardly seen.
    """

    is_cooperative = True

    def __init__(self, *, longest: int, short: str) -> None:
        self._longest = longest
        self._short = Path(short)

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        share = min(1.0, len(TOKEN.findall(action)) / self._longest)
        best = 0.0 if self._short.exists() else LONG
        return StepResult(Observation(""), reward=1 - abs(share - best), done=True)

    async def close(self) -> None:
        pass


class GrowingRun(AutoscaleDemo):
    def __init__(self, out: Path, options: argparse.Namespace) -> None:
        Demo.__init__(self, out, 0)
        self.options = options
        self.points: list[dict[str, Any]] = []
        self.killed_at: float | None = None
        self.machines = out / "machines"
        self.short = out / "short"
        self.paths = RunPaths(out / "run")

    async def run(self) -> bool:
        """Whether every episode of every whole iteration is there, and the engines came, shrank and went."""
        own, options = self.out, self.options
        if not (own / "model").exists():
            make_model(own / "model", options.shape, options.mean, options.longest, constant=0.5)
            hide_unreadable(own / "model")
        for split in ("train", "test"):
            tasks = [
                {"task_id": str(n), "prompt": f"{n} + 1 =", "env": "length"} for n in range(options.groups)
            ]
            (own / f"{split}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
        os.environ["RL_AGENT_LOCAL_MACHINES"] = str(self.machines)
        if options.gpu is None:
            os.environ.update(ENVIRONMENT)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        loop = await self.start("run", *self.loop_words(port))
        scale = await self.start_scale(self.machine_words(own / "model"))
        async with aiohttp.ClientSession() as self.session, asyncio.TaskGroup() as jobs:
            watch = jobs.create_task(self.watch())
            jobs.create_task(self.ask_for_short(watch, loop))
            status = await loop.wait()
            watch.cancel()
        scale.terminate()
        async with asyncio.timeout(STOP_TIMEOUT_S):
            is_ended = await scale.wait() == 0
        self.draw()
        is_whole = self.print_iterations()
        self.say(f"exit {status} of run.sh; all machines ended: {is_ended}; {own}/engines.svg")
        is_smaller = self.points[-1]["ready"] < MOST
        return status == 130 and is_ended and is_whole and self.killed_at is not None and is_smaller

    async def ask_for_short(self, watch: asyncio.Task[None], loop: asyncio.subprocess.Process) -> None:
        """Reward shortness once the lost engine is replaced, and end the run when engines were given back."""
        while not self.is_replaced:
            await asyncio.sleep(0.5)
            if watch.done():
                return
        self.say("another engine came; from now on shortness is rewarded")
        self.short.touch()
        asked_at = self.points[-1]["at_s"]
        while not self.is_settled(asked_at):
            await asyncio.sleep(0.5)
            if watch.done():
                return
        self.say(f"{self.points[-1]['ready']} of {MOST} engines are left; the run is asked to end")
        loop.send_signal(signal.SIGINT)

    def is_settled(self, asked_at: float) -> bool:
        """Whether fewer engines serve and nothing has changed for a while, or nothing ever does."""
        now = self.points[-1]["at_s"]
        lately = [point for point in self.points if point["at_s"] > now - SETTLED_S]
        fleets = {(point["ready"], point["wanted"]) for point in lately}
        is_less = self.points[-1]["ready"] < MOST and len(fleets) == 1 and now - asked_at > SETTLED_S
        return is_less or now - asked_at > CHANGE_TIMEOUT_S

    @property
    def is_replaced(self) -> bool:
        """Whether all engines serve again after one was seen to be gone."""
        after = [p["ready"] for p in self.points if self.killed_at is not None and p["at_s"] > self.killed_at]
        gone = next((at for at, ready in enumerate(after) if ready < MOST), None)
        return gone is not None and MOST in after[gone:]

    def loop_words(self, port: int) -> list[str]:
        options = self.options
        kind = f"{{name: cpu, price_per_hour: 0.1, min_engines: 1, max_engines: {MOST}, start_s: 30}}"
        settings: dict[str, Any] = {
            "engine": "cpu" if options.gpu is None else "gpu",
            "trainer": "grpo_cpu" if options.gpu is None else "grpo",
            "trainer.parallel.use_liger_kernel": "false",
            "trainer.loss.kl_in": "none",
            "trainer.loss.proximal": "current",
            "trainer.mini_batches": 4,
            "trainer.optimizer.learning_rate": options.learning_rate,
            "trainer.checkpoint.every_steps": 100,
            "trainer.checkpoint.every": 100,
            "pool": "elastic",
            "pool.port": port,
            "pool.local_engine": "false",
            "pool.scale.kinds": f"[{kind}]",
            "pool.scale.interval_s": 1,
            "pool.scale.raise_after_s": 10,
            "pool.scale.lower_after_s": 20,
            "model_config.base_model": self.out / "model",
            "model_config.template": "qwen3_nothink",
            "engine.max_model_len": options.longest + 64,
            "policy_config.max_new_tokens": options.longest,
            "env_config.train_tasks_rollout_size": options.groups,
            "env_config.test_tasks_rollout_size": 1,
            "env_config.server_size": options.groups * SIBLINGS,
            "env_config.module_folders": f"[{ROOT}]",
            "+env_config.kinds.length": "benchmarks.pool.growing_run:Length",
            "+env_config.kwargs.length": f"{{longest: {options.longest}, short: {self.short}}}",
            "rollout.group_size": SIBLINGS,
            "rollout.max_vllm_sessions": options.groups * SIBLINGS,
            "rollout.completion_threshold": 1.0,
            "wandb.mode": "disabled",
        }
        overridden = {word.partition("=")[0] for word in options.overrides}
        words = ["bash", "scripts/run.sh", "--data-path", self.out, "--log-path", self.paths.log_path]
        words += ["--rl-phase", "both", "--eval-interval", 1000, "--max-iterations", 1000]
        words += [f"{key}={value}" for key, value in settings.items() if key not in overridden]
        return [str(word) for word in [*words, *options.overrides]]

    def machine_words(self, model: Path) -> list[str]:
        own, options = self.out, self.options
        engine = ["--max-model-len", options.longest + 64, "--max-num-seqs", options.capacity]
        engine += ["--generation-config", "vllm", "--enforce-eager", "--kv-cache-memory-bytes"]
        machine = ["bash", f"{ROOT}/scripts/join_pool.sh", "--manager", "{manager}", "--name", "{name}"]
        machine += ["--kind", "{kind}", "--price", "{price}", "--model", str(model)]
        machine += ["--capacity", str(options.capacity), "--log", f"{own}/{{name}}.vllm.log"]
        if options.gpu is None:
            engine += [67108864, "--dtype", "float32", "--distributed-executor-backend", "uni"]
            engine += ["--no-enable-chunked-prefill"]
        else:
            engine += [2 << 30, "--dtype", "bfloat16"]
            machine += ["--gpus", options.gpu]
        machine.append(f"--engine-args={shlex.join(map(str, engine))}")
        return machine

    def print_iterations(self) -> bool:
        """Print a line an iteration; return whether all episodes of all that were trained on are there."""
        is_whole = True
        updates = [record for record in metrics.read(self.paths.metrics) if "update/tokens" in record]
        print("iteration  episodes  failed  tokens, median  longest  trainer waited  engines' versions")
        for record in updates:
            iteration = record["iteration"]
            episodes = list(read_iteration(self.paths, "train", iteration, TRAJECTORY))
            lengths = [sum(len(step.generation.token_ids) for step in episode.steps) for episode in episodes]
            failed = sum(episode.failure is not None for episode in episodes)
            is_whole &= len(episodes) == self.options.groups * SIBLINGS and not failed
            versions = sorted(
                {e.weight_version_min for e in episodes} | {e.weight_version_max for e in episodes}
            )
            print(
                f"{iteration:9}  {len(episodes):8}  {failed:6}  {statistics.median(lengths):14.0f}"
                f"  {max(lengths):7}  {record['update/waiting_s']:12.1f} s  {sorted(versions)}"
            )
        return is_whole and bool(updates)


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--gpu", help="one for everything; default: the CPU")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--groups", type=int, default=16, help=f"of {SIBLINGS} episodes an iteration")
    parser.add_argument("--mean", type=int, default=20, help="tokens of a response at the start")
    parser.add_argument("--longest", type=int, default=256, help="tokens of a response")
    parser.add_argument("--capacity", type=int, default=8, help="requests at an engine at once")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    add_provider(parser)
    parser.add_argument("--out", type=Path, help="model, logs, picture; default: a temporary folder")
    parser.add_argument("overrides", nargs="*", help="key=value for run.sh")
    options = parser.parse_args()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        return watched(GrowingRun(options.out.resolve(), options))
    with tempfile.TemporaryDirectory(prefix="growing-run-") as folder:
        return watched(GrowingRun(Path(folder), options))


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
