"""Seconds of an iteration that are not engine start, generation or training, on 1 to 16 nodes.

    python benchmarks/cluster/loop_overhead.py [--nodes 1,2,4,8,16] [--iterations 5]

Runs that many real `run.sh` on this machine, each a rank of one run in phase `both` that evaluates every
iteration: every verb is the real one. The engine answers at once and the training is a copy of files, so
what is left is orchestration: orders, claims, barriers, the collector's start and end, selection, export,
checks, publishing, process groups. The starts of the engine and of the training are taken off, the slowest
rank's of each. Beside it, the fixed sleeps of the reference, counted from its code.
"""

import itertools
import json
import os
import shlex
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.system.flag_parser import FlagParser
from tests.support.cluster.simulated_cluster import SimulatedCluster, read_trajectories

ROOT = Path(__file__).resolve().parents[2]
REFERENCE_S = 476
"""Critical path of microsoft/webgym's fixed sleeps in a multi-node iteration with evaluation."""
TASKS_PER_NODE = 8

STUB = """#!/usr/bin/env bash
# vLLM and LLaMA-Factory, reduced to what costs nothing; everything else is real.
home={home}
if [[ $1 == -P && $2 == -m && $3 == rl_agent.cli ]]; then
  case $4 in
    serve) exec {python} -S -E {root}/benchmarks/rollout/instant_engine.py "$ENGINE_PORT" \\
      "$(readlink -e "$home/log/model.pt" || echo "$home/model")" ;;
    train)
      while (($# > 0)); do
        [[ $1 != --iteration ]] || iteration=$2
        [[ $1 != --node-rank ]] || rank=$2
        shift
      done
      ((${{rank:-0}} == 0)) || exit 0
      folder=$(printf '%s/log/checkpoints/training-%06d' "$home" "$iteration")
      mkdir -p "$folder"
      exec cp -r "$home/checkpoint-1" "$folder/checkpoint-$iteration" ;;
  esac
fi
exec {python} "$@"
"""


class Cluster(SimulatedCluster):
    """The simulated cluster with programs that cost nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        from tests.support.cluster.simulated_cluster_files import write_checkpoint

        write_checkpoint(self.home / "model", self.home, step=1)
        stub = STUB.format(
            home=shlex.quote(str(self.home)), python=shlex.quote(sys.executable), root=shlex.quote(str(ROOT))
        )
        (self.home / "python").write_text(stub)


def run(home: Path, num_nodes: int, iterations: int) -> list[float]:
    """Overhead of every iteration but the first, in seconds."""
    cluster = Cluster(home, num_nodes, tasks=TASKS_PER_NODE * num_nodes)
    words = ["--rl-phase", "both", "--eval-interval", "1", "--max-iterations", str(iterations + 1)]
    sizes = ["env_config.train_tasks_rollout_size=-1", "env_config.test_tasks_rollout_size=-1"]
    try:
        for rank in range(num_nodes):
            cluster.start(rank, *words, *sizes, ENGINE_PORT=str(cluster.ports[rank]))
        statuses = cluster.wait(120 + 30 * iterations * num_nodes)
        if any(statuses.values()) or None in statuses.values():
            raise SystemExit(f"{statuses}\n" + "".join(map(cluster.output, statuses))[-6000:])
        require_training(cluster, iterations + 1)
        return overheads(cluster.log)
    finally:
        cluster.end()


def require_training(cluster: Cluster, iterations: int) -> None:
    """Stop unless every task was solved in every iteration, and every update published a version."""
    for iteration in range(1, iterations + 1):
        solved = sum((episode.reward or 0) > 0 for episode in read_trajectories(cluster, "train", iteration))
        if solved != cluster.tasks:
            raise SystemExit(
                f"iteration {iteration} solved {solved} of {cluster.tasks} tasks: nothing was measured"
            )
    version = (cluster.log / "model.pt").resolve().name
    if version != f"version-{iterations:06d}":
        raise SystemExit(f"{iterations} updates end with {version}: nothing was measured")


def overheads(log: Path) -> list[float]:
    """Seconds from one update's end to the next one's, less the slowest engine start and training."""
    master = read(log / "timeline.jsonl")
    others = [read(path) for path in log.glob("runs/*/logs/*/timeline.jsonl")]
    ends = [span["end"] for span in master if span["name"] == "update"]
    figures = []
    for iteration, (before, end) in enumerate(itertools.pairwise(ends), start=2):
        taken_off = sum(slowest([master, *others], name, iteration) for name in ("engine_start", "training"))
        figures.append(end - before - taken_off)
    return figures


def slowest(timelines: list[list[dict]], name: str, iteration: int) -> float:
    spans = [span for spans in timelines for span in spans]
    seconds = [s["end"] - s["start"] for s in spans if s["name"] == name and s["iteration"] == iteration]
    return max(seconds, default=0.0)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--nodes", default="1,2,4,8,16", help="numbers of nodes, with commas")
    parser.add_argument("--iterations", type=int, default=5, help="iterations to measure")
    options = parser.parse_args()
    print(f"seconds per iteration (both, with evaluation), {os.cpu_count()} cores")
    print(f"{'nodes':>5}{'median':>9}{'worst':>9}{'reference':>12}")
    for num_nodes in (int(word) for word in options.nodes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            figures = run(Path(folder), num_nodes, options.iterations)
        reference = REFERENCE_S if num_nodes > 1 else "-"
        print(
            f"{num_nodes:>5}{statistics.median(figures):>9.2f}{max(figures):>9.2f}{reference:>12}", flush=True
        )


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
