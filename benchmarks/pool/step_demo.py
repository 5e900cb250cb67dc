"""Training steps on this machine's CPU, watched: groups stream into the trainer, an engine joins meanwhile.

    bash scripts/examples/demo_step.sh [--tasks 64] [--out DIR]
    python benchmarks/pool/step_demo.py                          the same, in an environment that is set up

Everything is what a user would start: `scripts/run.sh` with `trainer=grpo pool=elastic` and an engine of its
own, `scripts/join_pool.sh` for the second one, vLLM with a tiny random model, which learns nothing. An
iteration's groups make four optimizer steps and one version of the weights. Four iterations are made, for the
second engine needs its time on a busy machine.
"""

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.pool.demo import CAPACITY, Demo, watched
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.flag_parser import FlagParser
from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths
from tests.integration.tiny_model import make_tiny_model

ITERATIONS, SIBLINGS, UPDATE_STEPS = 4, 4, 4
EVALUATIONS = 1
"""Requests before the step: the model is evaluated, on as little as possible."""
POLL_S = 0.5
START_TIMEOUT_S, STEP_TIMEOUT_S = 240.0, 600.0


class StepDemo(Demo):
    """`tasks` groups an iteration."""

    def __init__(self, out: Path, tasks: int) -> None:
        super().__init__(out, tasks * SIBLINGS * ITERATIONS)
        self.tasks = tasks
        self.paths = RunPaths(out / "run")
        self.seen: dict[str, Any] = {}
        self.tokens: dict[str, int] = {}
        """Of each engine, also of one that has left."""
        self.steps_seen = 0
        self.steps_meanwhile = 0

    def command(self, model: Path, port: int) -> list[str]:
        words = [
            "bash",
            "scripts/run.sh",
            "--data-path",
            str(self.out),
            "--log-path",
            str(self.paths.log_path),
        ]
        words += ["--rl-phase", "both", "--eval-interval", "100", "--max-iterations", str(ITERATIONS)]
        settings = {
            "engine": "cpu",
            "trainer": "grpo_cpu",
            "pool": "elastic",
            "pool.port": port,
            "model_config.base_model": model,
            "model_config.template": "qwen3_nothink",
            "engine.max_model_len": 256,
            "engine.max_num_seqs": CAPACITY,
            "engine.extra_args.kv-cache-memory-bytes": 67108864,
            "policy_config.max_new_tokens": 200,
            "env_config.train_tasks_rollout_size": self.tasks,
            "env_config.test_tasks_rollout_size": EVALUATIONS,
            "rollout.group_size": SIBLINGS,
            "rollout.completion_threshold": 1.0,
            "trainer.mini_batches": UPDATE_STEPS,
            "trainer.loss.advantage": "reinforce",
            "wandb.mode": "disabled",
        }
        return words + [f"{key}={value}" for key, value in settings.items()]

    async def run(self) -> bool:
        """Whether the second engine helped, steps were made meanwhile, and nothing was lost."""
        model = self.out / "model"
        if not model.exists():
            make_tiny_model(model, hidden_size=128)
        for split in ("train", "test"):
            tasks = (
                {"task_id": str(n), "prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(self.tasks)
            )
            lines = (json.dumps(task | {"env": "math", "difficulty": "easy"}) + "\n" for task in tasks)
            (self.out / f"{split}.jsonl").write_text("".join(lines))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        run = await self.start("run", *self.command(model, port))
        self.say(f"run.sh starts a manager, a trainer and engine a; its output is in {self.out / 'run.log'}")
        async with aiohttp.ClientSession() as self.session, asyncio.timeout(START_TIMEOUT_S + STEP_TIMEOUT_S):
            await self.until(run, lambda: bool(self.seen.get("engines")))
            await self.join("engine-b", model)
            self.say("engine a is there; engine b is started, which takes longer, and nobody waits for it")
            if await self.until(run, lambda: self.submitted > EVALUATIONS):
                self.say(f"the first iteration begins: {self.tasks} groups of {SIBLINGS} episodes")
            if await self.until(run, lambda: self.engine_b().get("state") == "ready"):
                self.say(f"engine b joins in the middle of iteration {self.iteration}: {self.progress()}")
            if await self.until(run, lambda: self.ended >= self.requests):
                self.say("the last episode is there")
            await self.until(run, lambda: False)
        return self.account_of_step(run.returncode)

    async def until(self, run: asyncio.subprocess.Process, condition: Callable[[], bool]) -> bool:
        """Look at the pool and the trainer until something holds; False if the run is over before."""
        while run.returncode is None:
            await self.look()
            if condition():
                return True
            await asyncio.sleep(POLL_S)
        return False

    async def look(self) -> None:
        with contextlib.suppress(aiohttp.ClientError):  # not there yet, or not any more
            self.seen = await self.status()
            self.tokens |= {engine["name"]: engine["useful_tokens"] for engine in self.seen["engines"]}
        for record in list(metrics.read(self.paths.metrics)):
            if record.get("update_step", 0) > self.steps_seen:
                self.steps_seen = int(record["update_step"])
                self.steps_meanwhile += self.ended < record["iteration"] * self.tasks * SIBLINGS
                self.say(
                    f"update step {self.steps_seen}, of iteration {record['iteration']}: {self.progress()}"
                )

    @property
    def submitted(self) -> int:
        return self.seen.get("requests", {}).get("submitted", 0)

    @property
    def ended(self) -> int:
        """Training episodes whose responses the pool has completed."""
        return max(0, self.seen.get("requests", {}).get("completed", 0) - EVALUATIONS)

    @property
    def iteration(self) -> int:
        return self.ended // (self.tasks * SIBLINGS) + 1

    def engine_b(self) -> dict[str, Any]:
        named = (engine for engine in self.seen.get("engines", ()) if engine["name"] == "engine-b")
        return next(named, {})

    def progress(self) -> str:
        return f"{self.ended} of {self.requests} episodes are there"

    def account_of_step(self, status: int | None) -> bool:
        requests = self.seen["requests"]
        share = self.tokens.get("engine-b", 0) / max(sum(self.tokens.values()), 1)
        version = self.paths.model_link.resolve().name
        self.say(
            f"{requests['completed']} of {requests['submitted']} requests completed, {requests['failed']}"
            f" failed; engine b generated {100 * share:.0f}% of the tokens; {self.steps_seen} update steps,"
            f" {self.steps_meanwhile} of them before their iteration's last episode; {version} is published"
        )
        is_whole = (
            requests["completed"] == requests["submitted"] and self.steps_seen == ITERATIONS * UPDATE_STEPS
        )
        return status == 0 and is_whole and share > 0 and self.steps_meanwhile > 0


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=64, help="groups an iteration")
    parser.add_argument("--out", type=Path, help="model, tasks and logs; default: a temporary folder")
    options = parser.parse_args()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        return watched(StepDemo(options.out.resolve(), options.tasks))
    with tempfile.TemporaryDirectory(prefix="demo-step-") as folder:
        return watched(StepDemo(Path(folder), options.tasks))


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
