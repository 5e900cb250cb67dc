"""How long a barrier takes, and what it asks of the shared folder, on 1 to 16 nodes.

    python benchmarks/cluster/barrier_latency.py [--nodes 1,2,4,8,16] [--barriers 100]

Every node is a process of this machine, a real member of one run over a folder on its disk. They go through
orders and barriers and nothing else; each does "work" of a random length up to 50 ms. The latency is the time
from when the last of them has finished to when a node knows the decision, over all nodes and barriers: the
flag's way to the master, the decision, its way back. Then all wait for each other, and the operations on the
folder are counted for 5 s. Beside it, the least pause between two looks at the folder.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.cluster.member import member as membership
from rl_agent.cluster.member.coordinator import FASTEST_S, SLOWEST_S
from rl_agent.cluster.shared_fs.folder import SharedFolder
from rl_agent.config import Command, Plan, new_incarnation
from rl_agent.flag_parser import FlagParser
from rl_agent.testing.rollout_setup import make_plan

LONGEST_WORK_S = 0.05
QUIET_S = 5.0
WAIT_S = 300.0


class CountingFolder(SharedFolder):
    """Counts what is asked of the file server, by kind."""

    operations: ClassVar[Counter[str]] = Counter()

    def __getattribute__(self, name: str):
        if name in ("write_whole", "look", "create_exclusive", "names"):
            CountingFolder.operations[name] += 1
        return super().__getattribute__(name)


def node(plan_path: Path, barriers: int) -> None:
    """One node; prints a JSON line with its times and counts."""
    membership.SharedFolder = CountingFolder
    chance = random.Random(str(plan_path))
    times: list[tuple[float, float]] = []
    with membership.Member.enter(Plan.read(plan_path), {}) as member:
        for number in range(1, barriers + 1):
            if member.is_master:
                member.give_order(number, "update")
            else:
                member.next_order()
            time.sleep(chance.uniform(0, LONGEST_WORK_S))
            finished = time.monotonic()
            member.finish(number, "update", "done")
            member.wait_decision(number, "update", timeout_s=WAIT_S)
            times.append((finished, time.monotonic()))
        time.sleep(1.0)
        CountingFolder.operations.clear()
        time.sleep(QUIET_S)
        quiet = sum(CountingFolder.operations.values()) / QUIET_S
        time.sleep(1.0)
    print(json.dumps({"times": times, "quiet": quiet}))


def run(folder: Path, num_nodes: int, barriers: int) -> tuple[list[float], float]:
    """Latencies of all nodes and barriers in seconds, and operations a second and node while all is quiet."""
    plan = make_plan(folder, engine_url="http://127.0.0.1:1", model=folder)
    processes = []
    for rank in range(num_nodes):
        fields = plan.command.model_dump()
        fields |= {"num_nodes": num_nodes, "rank": rank, "rank_weights": (1,) * num_nodes}
        own = {"command": Command.model_validate(fields), "incarnation": new_incarnation()}
        path = folder / f"plan-{rank}.json"
        plan.model_copy(update=own).write(path)
        words = [sys.executable, __file__, "--node", str(path), "--barriers", str(barriers)]
        processes.append(
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        )
    outputs = [process.communicate(timeout=WAIT_S)[0] for process in processes]
    found = [json.loads(output) for output in outputs]
    latencies = []
    for barrier in zip(*(node["times"] for node in found), strict=True):
        last = max(finished for finished, _ in barrier)
        latencies += [decided - last for _, decided in barrier]
    return latencies, statistics.mean(node["quiet"] for node in found)


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--nodes", default="1,2,4,8,16", help="numbers of nodes, with commas")
    parser.add_argument("--barriers", type=int, default=100)
    parser.add_argument("--node", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node:
        node(options.node, options.barriers)
        return
    print(
        f"{options.barriers} barriers, {os.cpu_count()} cores; looks {FASTEST_S:g} to {SLOWEST_S:g} s apart"
    )
    print(f"{'nodes':>5}{'p50 ms':>9}{'p99 ms':>9}{'worst ms':>10}{'operations/s a node, quiet':>28}")
    for num_nodes in (int(word) for word in options.nodes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            latencies, quiet = run(Path(folder), num_nodes, options.barriers)
        cuts = statistics.quantiles(latencies, n=100, method="inclusive")
        row = f"{1000 * cuts[49]:>9.0f}{1000 * cuts[98]:>9.0f}{1000 * max(latencies):>10.0f}{quiet:>28.1f}"
        print(f"{num_nodes:>5}{row}", flush=True)


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
