"""N real `run.sh` on one machine, each a rank of its own; only vLLM and LLaMA-Factory are stood in for.

The engine is the simulated one, started as a rank starts vLLM. The training is a program that meets the other
nodes, as torchrun does, and then leaves a checkpoint; if a node is missing it hangs, as torchrun does.

    python -m tests.support.cluster.simulated_cluster serve --plan P
    python -m tests.support.cluster.simulated_cluster train --plan P --iteration I --nodes N --node-rank R …
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_agent.paths import PROJECT_ROOT
from rl_agent.types import Split, Trajectory
from tests.support.ports import quiet_port, quiet_ports

RUN_SH = PROJECT_ROOT / "scripts" / "run.sh"

STUB = """#!/usr/bin/env bash
if [[ $1 == -P && $2 == -m && $3 == rl_agent.cli ]]; then
  case $4 in
    serve | train) exec {python} -P -m tests.support.cluster.simulated_cluster "${{@:4}}" ;;
  esac
fi
exec {python} "$@"
"""
RESPONSE = "0123456"
"""The simulated engine says this in 8 tokens; the tasks want it, so every episode succeeds."""
HURRY = "/hurry"
FONTS = str(Path.home() / ".cache/matplotlib")
"""The folder of matplotlib's list of fonts; in a new home it would be made anew, which takes a second."""


@dataclass
class SimulatedCluster:
    """A data path, a log path, and one command line per rank."""

    home: Path
    num_nodes: int
    tasks: int = 16
    weights: tuple[int, ...] = ()
    overrides: tuple[str, ...] = ()
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from tests.support.cluster.simulated_cluster_files import write_home

        self.home.mkdir(parents=True, exist_ok=True)
        write_home(self.home, self.tasks, RESPONSE)
        stub = self.home / "python"
        stub.write_text(STUB.format(python=shlex.quote(sys.executable)))
        stub.chmod(0o755)
        self.ports = quiet_ports(self.num_nodes)

    @property
    def log(self) -> Path:
        return self.home / "log"

    def argv(self, rank: int, *words: str) -> list[str]:
        nodes: list[str] = []
        if self.num_nodes > 1:
            weights = self.weights or (1,) * self.num_nodes
            nodes = ["--num-nodes", str(self.num_nodes), "--rank-weights", ",".join(map(str, weights))]
            nodes += ["--worker", str(rank)]
        return [*self._base(self.ports[rank]), *words, *nodes]

    def joiner_argv(self, *words: str) -> list[str]:
        return [*self._base(quiet_port(), own=True), "--rl-phase", "rollout", "--join", *words]

    def _base(self, port: int, *, own: bool = False) -> list[str]:
        paths = ["--data-path", str(self.home / "data"), "--log-path", str(self.log)]
        shared = [] if own else [f"model_config.base_model={self.home / 'model'}", *self.overrides]
        return ["bash", str(RUN_SH), *paths, f"engine.port={port}", *shared]

    def environ(self, **more: str) -> dict[str, str]:
        ours = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "MPLCONFIGDIR": FONTS,
            "RL_AGENT_PYTHON": str(self.home / "python"),
            "TEST_MARK": str(self.home),
            "CUDA_VISIBLE_DEVICES": "",
            "WANDB_MODE": "disabled",
        }
        return ours | more

    def start(self, rank: int, *words: str, **more: str) -> subprocess.Popen[bytes]:
        return self._start(f"rank-{rank}", self.argv(rank, *words), more)

    def join(self, name: str, *words: str, **more: str) -> subprocess.Popen[bytes]:
        return self._start(name, self.joiner_argv(*words), more)

    def start_all(self, *words: str, **more: str) -> None:
        for rank in range(self.num_nodes):
            self.start(rank, *words, **more)

    def _start(self, name: str, argv: list[str], more: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.log").open("a") as output:
            process = subprocess.Popen(
                argv,
                env=self.environ(RANK_OF_TEST=name, **more),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def hurry(self) -> None:
        """Make the engines answer at once from now on."""
        Path(f"{self.home}{HURRY}").touch()

    def output(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text()

    def wait(self, timeout_s: float) -> dict[str, int | None]:
        """Exit statuses; None for what still runs at the deadline."""
        deadline = time.monotonic() + timeout_s
        statuses: dict[str, int | None] = {}
        for name, process in self.processes.items():
            try:
                statuses[name] = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                statuses[name] = None
        return statuses

    def pids_of(self, name: str) -> list[int]:
        """Every process of a rank: its driver, and what carries a mark of the driver's groups."""
        return [pid for pid, environ in self._marked() if environ.get("RANK_OF_TEST") == name]

    def living(self) -> list[int]:
        """Processes that this cluster started and that still live."""
        return [pid for pid, _ in self._marked()]

    def _marked(self) -> list[tuple[int, dict[str, str]]]:
        processes = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            except OSError:
                continue
            environ = dict(word.decode(errors="replace").partition("=")[::2] for word in words)
            if environ.get("TEST_MARK") == str(self.home):
                processes.append((int(entry.name), environ))
        return processes

    def end(self) -> None:
        """KILL everything that is left."""
        for pid in self.living():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.processes.values():
            process.wait(10)


def serve(plan_path: Path) -> None:
    from rl_agent.config.plan import Plan
    from rl_agent.engine.model import resolve_model

    plan = Plan.read(plan_path)
    engine = plan.config.engine
    words = [
        sys.executable,
        str(Path(__file__).parents[1] / "simulated_engine.py"),
        "--port",
        str(engine.port),
    ]
    words += ["--root", resolve_model(plan.config).path, "--latency-until", os.environ["TEST_MARK"] + HURRY]
    os.execv(words[0], [*words, *shlex.split(os.environ.get("SIMULATED_ENGINE", ""))])


def train(plan_path: Path, iteration: int, nodes: int, node_rank: int) -> int:
    """Meet the other nodes through files, as torchrun does through its store; node 0 leaves a checkpoint."""
    from rl_agent.config.plan import Plan
    from rl_agent.engine.model import resolve_model
    from tests.support.cluster.simulated_cluster_files import write_checkpoint

    plan = Plan.read(plan_path)
    folder = plan.paths.training_dir(iteration)
    meeting = plan.paths.update_dir(iteration) / f"meeting-{nodes}"
    meeting.mkdir(parents=True, exist_ok=True)
    (meeting / str(node_rank)).touch()
    while len(list(meeting.iterdir())) < nodes:
        time.sleep(0.02)
    while os.environ.get("SIMULATED_TRAINING_HANGS_WITH") == str(nodes):
        time.sleep(1)
    if node_rank == 0:
        write_checkpoint(Path(resolve_model(plan.config).path), folder, step=iteration)
    while not (folder / "finished").exists():
        time.sleep(0.02)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=("serve", "train"))
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--iteration", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master")
    options = parser.parse_args()
    if options.verb == "serve":
        serve(options.plan)
    return train(options.plan, options.iteration, options.nodes, options.node_rank)


def read_trajectories(cluster: SimulatedCluster, split: Split, iteration: int) -> Iterator[Trajectory]:
    """Yield the trajectories that an iteration's readers see."""
    from rl_agent.paths import RunPaths
    from rl_agent.rollout.trajectories.line import TRAJECTORY
    from rl_agent.rollout.trajectories.manifest import read_iteration

    yield from read_iteration(RunPaths(cluster.log), split, iteration, TRAJECTORY)


def read_episodes(cluster: SimulatedCluster, split: Split, iteration: int) -> list[str]:
    """Return the keys of the episodes that an iteration's readers see."""
    return [str(trajectory.key) for trajectory in read_trajectories(cluster, split, iteration)]


def timeline(cluster: SimulatedCluster) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (cluster.log / "timeline.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    sys.exit(main())
