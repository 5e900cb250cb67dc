"""Measures the collector alone: one-step episodes, an engine that answers at once, the real store.

    python benchmarks/rollout/overhead.py [--episodes 10000] [--group-size 1] [--no-fsync]

Claim: at least 2,000 episodes per second on 2 cores, and memory that does not grow with the episodes. The
engine is a process of its own and shares the cores. Baseline of the same run: the bare HTTP client sending
the same requests, nothing parsed, nothing recorded.
"""

import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.cluster.member.member import Member
from rl_agent.config.plan import Plan
from rl_agent.engine import wire
from rl_agent.engine.wire import Sampling
from rl_agent.rollout import run as rollout_run
from rl_agent.rollout.loop import RolloutLoop
from rl_agent.rollout.rank_rollout import RankRollout
from rl_agent.rollout.sample import Assignment
from rl_agent.system.flag_parser import FlagParser
from tests.support.rollout_setup import make_plan, simulated_engine, write_tasks

SERVER_SIZE = 64
MARKS = (0.1, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Measured:
    seconds: float
    cpu_s: float
    rss_mib: dict[float, float]
    """Resident memory when that share of the episodes was recorded."""


class WatchedRollout(RankRollout):
    """The real rollout; also reads this process's memory as it goes."""

    rss_mib: dict[float, float]

    async def collect(self, source):
        WatchedRollout.rss_mib = {}
        watch, process = self.collector._on_recorded, psutil.Process()
        marks = {max(1, round(mark * self.collector.submitted)): mark for mark in MARKS}

        def on_recorded(trajectory):
            watch(trajectory)
            if self.collector.done in marks:
                WatchedRollout.rss_mib[marks[self.collector.done]] = process.memory_info().rss / 2**20

        self.collector._on_recorded = on_recorded
        await super().collect(source)


def measure_collector(plan: Plan) -> Measured:
    rollout_run.RankRollout = WatchedRollout
    began, cpu = time.perf_counter(), time.process_time()
    with RolloutLoop() as rollouts:
        rollouts.run(Assignment(plan, "train", 1, resume=False), Member.alone(plan))
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return Measured(seconds, cpu_s, WatchedRollout.rss_mib)


def measure_client(url: str, episodes: int) -> Measured:
    """The same number of requests through aiohttp alone."""
    sampling = Sampling(1.0, 1.0, -1, 0.0, 128, 1)
    body = wire.completion_request("simulated", list(range(40)), sampling, "0")

    async def send() -> None:
        left = iter(range(episodes))
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as jobs:

            async def worker() -> None:
                for _ in left:
                    async with session.post(url + "/v1/completions", data=body) as answer:
                        await answer.read()

            for _ in range(SERVER_SIZE):
                jobs.create_task(worker())

    began, cpu = time.perf_counter(), time.process_time()
    uvloop.run(send())
    return Measured(time.perf_counter() - began, time.process_time() - cpu, {})


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--group-size", type=int, default=1, help="attempts at each task")
    parser.add_argument("--no-fsync", action="store_true")
    options = parser.parse_args()
    episodes = options.episodes
    with tempfile.TemporaryDirectory() as name, simulated_engine(Path(name)) as url:
        plan = make_plan(
            Path(name),
            "+env_config.kinds.instant=benchmarks.rollout.environments:InstantEnvironment",
            "env_config.train_tasks_rollout_size=-1",
            f"env_config.server_size={SERVER_SIZE}",
            f"rollout.group_size={options.group_size}",
            f"rollout.fsync={not options.no_fsync}",
            engine_url=url,
        )
        write_tasks(plan, episodes // options.group_size, env="instant", difficulty="easy")
        client = measure_client(url, episodes)
        collector = measure_collector(plan)
        size_bytes = plan.paths.shard("train", 1).stat().st_size
    show(episodes, client, collector)
    memory = ", ".join(f"{rss:.0f} MiB at {mark:.0%}" for mark, rss in collector.rss_mib.items())
    print(f"\nmemory: {memory}; shard: {size_bytes / episodes:.0f} bytes per episode")
    print(f"load of the machine when it ended: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0 if episodes / collector.seconds >= 2000 else 1


def show(episodes: int, client: Measured, collector: Measured) -> None:
    print(f"{'':26}{'episodes/s':>12}{'seconds':>10}{'CPU us/episode':>16}")
    for title, measured in (("bare HTTP client", client), ("collector, real store", collector)):
        rate, cpu_us = episodes / measured.seconds, measured.cpu_s / episodes * 1e6
        print(f"{title:26}{rate:12.0f}{measured.seconds:10.2f}{cpu_us:16.0f}")


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
