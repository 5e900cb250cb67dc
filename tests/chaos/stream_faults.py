"""A streaming run of two nodes under kills, stops and a clock that jumps, one seed a run.

    python -m tests.chaos.stream_faults [--runs 10] [--seed 0]

Each run is two real `run.sh` with `trainer=grpo pool=elastic`: a real manager, worker, collector and
trainer of two ranks, a tiny model, the simulated engine in vLLM's place. The seed draws one to three faults:

    kill W      SIGKILL to W
    stop W      SIGSTOP to W and what is below it, SIGCONT 1 to 15 s later; a lease is 5 s
    clock       the wall clock, as Python sees it, jumps by up to 12 hours, forwards or backwards

W is the manager, the worker, the engine, a rank of the trainer, a node process, a driver, or one with its
guard. When both nodes have ended, the same commands go on with --resume until the run is over. Checked: every
episode is recorded once and trained on once, of a version of the iteration before; versions never went back;
nobody hangs; no process is left. Exit status 1 if anything is not so.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from rl_agent.cli import join_pool
from rl_agent.monitor import metrics
from rl_agent.paths import PROJECT_ROOT
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from rl_agent.served_model import versions
from rl_agent.system.processes import read_groups
from rl_agent.trainer.grpo.checkpoint.states import read_published
from rl_agent.worker.run_worker import RunEngine
from tests.integration.real_run import Run
from tests.integration.trainer.stream.stream_run import UNIFORM, make_uniform_model
from tests.support import streaming_engine

TASKS, SIBLINGS, ITERATIONS = 8, 2, 2
WORDS = (
    "--rl-phase", "both", "--no-final-eval",
    "--eval-interval", "9", "trainer=grpo_cpu", "pool=elastic", "pool.port=0",
    f"rollout.group_size={SIBLINGS}", "trainer.mini_batches=2", "cluster.chunk_tasks=2",
    "--num-nodes", "2", "--rank-weights", "1,1", "--max-iterations", str(ITERATIONS),
    "cluster.heartbeat_s=0.5", "cluster.lease_s=5", "pool.lease_s=5", "pool.heartbeat_s=0.5",
)  # fmt: skip
ENGINE = "simulated-engine"
LIMIT_S, GONE_S = 300.0, 15.0
WHOM = (
    "manager",
    "worker",
    "engine",
    "trainer 0",
    "trainer 1",
    "node 0",
    "node 1",
    "driver 0",
    "driver 1",
    "guard",
)
SKEW = """import os, time
_true, _file = time.time, os.environ["CHAOS_CLOCK"]
def _time():
    try:
        with open(_file) as found:
            return _true() + float(found.read())
    except (OSError, ValueError):
        return _true()
time.time = _time
"""
STUB = """#!/usr/bin/env bash
if [[ $1 == -P && $3 == rl_agent.cli && $4 == join-pool ]]; then
  exec {python} -P -m tests.chaos.stream_faults "${{@:4}}"
fi
exec {python} "$@"
"""


def join_with_simulated_engine(argv: list[str]) -> int:
    """The real worker; its engine takes weights by vLLM's routes, and is 50 ms at a token."""

    def words(self: RunEngine, model: str, port: int) -> list[str]:
        how = ["--takes-weights", "--interval", "0.2", "--port", str(port), "--root", model]
        return [sys.executable, "-m", "tests.chaos.stream_faults", ENGINE, *how]

    RunEngine.words = words  # type: ignore[method-assign]
    return join_pool.main(argv)


def serve(argv: list[str]) -> int:
    """Says the same wherever a response is continued: what a token is, its place in the context says."""
    folder = Path(argv[argv.index("--root") + 1])
    end = json.loads((folder / "config.json").read_text())["eos_token_id"]

    def whole(context: tuple[int, ...]) -> list[int]:
        to = (len(context) // 29 + 1) * 29
        return [*context, *(20 + place % 9 for place in range(len(context), to)), end]

    streaming_engine.PROMPT, streaming_engine.truth = 0, whole
    streaming_engine.logprob_of = lambda token: UNIFORM  # the trainer's first step compares
    sys.argv = ["engine", *argv]
    return streaming_engine.main()


class Disturbed(Run):
    """The two nodes of a run; the first has the pool and its engine."""

    def __init__(self, home: Path, seed: int) -> None:
        super().__init__(home, make_uniform_model(home / "model", hidden_size=128))
        self.random = random.Random(seed)
        self.change({"env_config.train_tasks_rollout_size": TASKS, "env_config.test_tasks_rollout_size": 4})
        stub = home / "python"
        stub.write_text(STUB.format(python=sys.executable))
        stub.chmod(0o755)
        (home / "skew").mkdir()
        (home / "skew" / "sitecustomize.py").write_text(SKEW)
        self.nodes: list[subprocess.Popen] = []
        self.happened: list[str] = []
        self.versions: list[int] = []

    def begin(self, *more: str) -> None:
        own = {"RL_AGENT_PYTHON": str(self.home / "python"), "CHAOS_CLOCK": str(self.home / "clock")}
        own["PYTHONPATH"] = f"{self.home / 'skew'}:{PROJECT_ROOT}"
        self.nodes = [
            self.start(*WORDS, "--worker", "0", *more, **own, RANK_OF_TEST="0"),
            self.start(*WORDS, "--worker", "1", "pool.local_engine=false", *more, **own, RANK_OF_TEST="1"),
        ]

    def is_running(self) -> bool:
        self.see_version()
        return any(node.poll() is None for node in self.nodes)

    def see_version(self) -> None:
        name = self.paths.model_link.resolve().name if self.paths.model_link.exists() else "version-0"
        self.versions.append(int(name.partition("-")[2]))

    def sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.is_running():
            time.sleep(0.05)

    def disturb(self) -> None:
        """One fault, if there is still a victim."""
        kind = self.random.choice(("kill", "kill", "stop", "stop", "clock"))
        whom, pause_s = self.random.choice(WHOM), self.random.uniform(1, 15)
        if kind == "clock":
            jump_s = self.random.uniform(-12, 12) * 3600
            (self.home / "clock").write_text(str(jump_s))
            self.happened.append(f"clock {jump_s / 3600:+.1f} h")
            return
        victims = self.victims(whom)
        self.happened.append(f"{kind} {whom}{'' if victims else ' (not there)'}")
        send(victims[:1] if kind == "kill" and whom != "guard" else victims, signal.SIGSTOP)
        if kind == "kill":
            send(victims[:1] if whom != "guard" else victims, signal.SIGKILL)
            return
        self.sleep(pause_s)
        self.happened[-1] += f" {pause_s:.0f} s"
        send(victims, signal.SIGCONT)

    def victims(self, whom: str) -> list[int]:
        """The process, and those below it; of the guard, its driver first."""
        name, _, rank = whom.partition(" ")
        node = self.nodes[int(rank or 0)]
        if node.poll() is not None:
            return []
        if name == "driver":
            return [node.pid]
        if name == "guard":
            return [node.pid, *(p.pid for p in children(node.pid) if "guard.sh" in " ".join(words_of(p)))]
        if name == "engine":
            return [pid for pid in self.processes() if ENGINE in words_of(psutil.Process(pid))]
        leader = self.leader(name, int(rank or 0))
        if leader is None:
            return []
        below = children(leader)
        if name == "trainer":
            return [p.pid for p in below if "rl_agent.trainer.grpo.worker" in words_of(p)]
        return [leader, *(p.pid for p in below)] if name != "worker" else [leader]

    def leader(self, name: str, rank: int) -> int | None:
        names = {"worker": ("vllm", "worker", "engine")}.get(name, (name,))
        for folder in (self.log / "runs" / "latest" / "groups").glob(f"*/rank-{rank}"):
            for group in read_groups(folder):
                if group.name in names:
                    return group.leader.pid
        return None

    def carry_out(self) -> list[str]:
        """Faults that were found."""
        self.begin()
        if self.random.random() < 0.8:  # else the start is disturbed, too
            until = time.monotonic() + 60
            while not self.victims("trainer 1") and time.monotonic() < until:
                self.sleep(0.2)
        for _ in range(self.random.randint(1, 3)):
            self.sleep(self.random.uniform(3, 25))
            if self.is_running():
                self.disturb()
        for _ in range(4):
            self.sleep(LIMIT_S)
            if self.is_running():
                return ["it hangs"]
            if left := self.left():
                return [f"processes are left: {left}"]
            statuses = [node.returncode for node in self.nodes]
            self.happened.append(f"ended {statuses}")
            if statuses[0] == 0:
                break
            is_begun = (self.log / "runs" / "latest").exists()
            self.begin(*(("--resume",) if is_begun else ()))
        else:
            return ["it never gets through"]
        return self.damage()

    def left(self) -> list[str]:
        until = time.monotonic() + GONE_S
        while (pids := self.processes()) and time.monotonic() < until:
            time.sleep(0.1)
        return [" ".join(words_of(psutil.Process(pid))) for pid in pids if psutil.pid_exists(pid)]

    def damage(self) -> list[str]:
        wrong = []
        if self.versions != sorted(self.versions):
            wrong.append("versions went back")
        served = versions.served_folder(self.paths)
        if served is None or versions.read_record(served).iteration != ITERATIONS:
            wrong.append(f"it ends with {served}")
        made_in = {0: 0} | read_published(self.paths.streaming).made_in
        steps = {r["update_step"]: r for r in metrics.read(self.paths.metrics) if "update_step" in r}
        trained = sum(step["trainer/episodes"] for step in steps.values())
        if trained != ITERATIONS * TASKS * SIBLINGS:
            wrong.append(f"trained on {trained} episodes")
        for iteration in range(1, ITERATIONS + 1):
            episodes = list(read_iteration(self.paths, "train", iteration, TRAJECTORY))
            keys = {episode.key for episode in episodes}
            if len(episodes) != len(keys) or len(keys) != TASKS * SIBLINGS:
                wrong.append(
                    f"iteration {iteration}: {len(episodes)} episodes, {len(keys)} of them different"
                )
            numbers = {n for e in episodes for n in (e.weight_version_min, e.weight_version_max)}
            if {made_in.get(number) for number in numbers} != {iteration - 1}:
                wrong.append(f"iteration {iteration}: of versions {sorted(numbers)}, made in {made_in}")
        return wrong


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def run(seed: int, keep: Path | None = None) -> tuple[list[str], str]:
    """Faults that were found, and the events of the run."""
    with (
        tempfile.TemporaryDirectory(prefix="stream-faults-") as folder,
        Disturbed(Path(folder), seed) as disturbed,
    ):
        try:
            wrong = disturbed.carry_out()
        except Exception as error:  # a run that cannot be judged is not right
            wrong = [repr(error)]
        if wrong and keep is not None:
            kept = keep / f"seed-{seed}"
            disturbed.__exit__()
            subprocess.run(["cp", "-r", folder, str(kept)], check=False)
        return wrong, "; ".join(disturbed.happened)


def main() -> int:
    if sys.argv[1:2] == [ENGINE]:
        return serve(sys.argv[2:])
    if sys.argv[1:2] == ["join-pool"]:
        return join_with_simulated_engine(sys.argv[2:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--keep", type=Path, help="a folder for what failed runs leave")
    options = parser.parse_args()
    failed = 0
    for seed in range(options.seed, options.seed + options.runs):
        began = time.monotonic()
        wrong, happened = run(seed, options.keep)
        failed += bool(wrong)
        print(
            f"{seed:>5} {time.monotonic() - began:6.0f} s  {happened}: {'; '.join(wrong) or 'ok'}", flush=True
        )
    print(f"{options.runs} runs, {failed} of them wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
