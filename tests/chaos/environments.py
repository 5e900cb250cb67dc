"""Rollouts whose environments' workers and servers are killed and frozen, one seed a run.

    python -m tests.chaos.environments [--runs 50] [--seed 0]

Each run: real episodes of a collector, whose agent at random lets its environment answer, raise, crash its
process, block its event loop, start children that leave its process group, or return nonsense. They live in
two worker processes, or on two servers with a worker each. Meanwhile workers, guards and servers are killed
(SIGKILL) and frozen (SIGSTOP), and servers come back. Whatever happened: every episode ended and is recorded
once (submitted = ended), every attempt before the last has its reason, and afterwards no process below this
one is left, nor, of workers, a temporary folder.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from rl_agent.cluster.shared_fs.processes import ProcessId
from rl_agent.env.guard import descendants
from rl_agent.env.remote.placement import WorkerLimits
from rl_agent.env.remote.server_link import LinkSettings
from rl_agent.env.remote.server_pool import open_servers
from rl_agent.env.remote.worker import WorkerSetup
from rl_agent.env.remote.worker_pool import open_workers
from rl_agent.testing.ports import quiet_port
from rl_agent.types import EpisodeKey, EpisodeSpec, Generation, Status, Task
from tests.unit.env.remote.pools import KINDS
from tests.unit.rollout.collecting import FakeSource, FakeWriter, make_collector
from tests.unit.rollout.episodes import FakeEngine, make_setup

EPISODES, PLACES, STEPS, ATTEMPTS = 24, 12, 4, 3
TIMEOUT_S = 2.0
RUN_LIMIT_S = 240.0
ACTIONS = ("look",) * 12 + ("done",) * 5 + ("wait 0.1", "raise oh", "lie", "child", "detached", "picture x")
BAD_ACTIONS = ("exit 3", "block 20", "leave")


class DrawnEngine(FakeEngine):
    """An agent that draws its actions from the seed of each request."""

    def __init__(self, share_bad):
        super().__init__()
        self._share_bad = share_bad

    async def generate(self, prompt_token_ids, sampling, *, request_id, decode):
        drawn = random.Random(sampling.seed)
        actions = BAD_ACTIONS if drawn.random() < self._share_bad else ACTIONS
        await asyncio.sleep(drawn.random() * 0.05)
        return Generation((1, 2), (-0.1, -0.1), drawn.choice(actions), "stop", 1, 1)


class Server:
    """A real environment server of this machine, started again at the same port."""

    def __init__(self):
        self.port = quiet_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        kinds = [f"+kinds.{kind}={dotted}" for kind, dotted in KINDS.items()]
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "rl_agent.cli", "env-server", "--listen", f"127.0.0.1:{self.port}"),
                *("--workers", "1", "--places", "8", "--drain-s", "1", "--client-timeout-s", "10"),
                *(*kinds, f"worker_timeout_s={TIMEOUT_S}"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()


def spec_of(index, seed):
    task = Task(f"task-{index}", "go", "obeying", "easy")
    return EpisodeSpec(EpisodeKey(task.task_id, 0, 0), task, max_steps=STEPS, seed=seed * 1000 + index)


async def disturb(draw, servers):
    """Kill and freeze, until cancelled."""
    while True:
        await asyncio.sleep(draw.uniform(0.3, 1.5))
        if servers and draw.random() < 0.3:
            server = draw.choice(servers)
            if draw.random() < 0.5:
                server.kill()
                await asyncio.sleep(draw.uniform(0.1, 1.0))
                server.start()
            else:
                server.process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(draw.uniform(0.5, 2 * TIMEOUT_S))
                server.process.send_signal(signal.SIGCONT)
            continue
        below = [pid for pid in descendants(os.getpid()) if pid not in {one.process.pid for one in servers}]
        if below:
            with suppress(ProcessLookupError):
                os.kill(draw.choice(below), draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)))


async def play(seed):
    """Run one seed; returns what became of its episodes."""
    draw = random.Random(seed)
    is_remote = bool(seed % 2)
    servers = [Server(), Server()] if is_remote else []
    lived = set()
    writer = FakeWriter()
    try:
        async with AsyncExitStack() as stack:
            if is_remote:
                urls = tuple(server.url for server in servers)
                link = LinkSettings(None, None, TIMEOUT_S)
                pool = await stack.enter_async_context(
                    open_servers(urls, link, wait_s=120.0, spool_bytes=2**20)
                )
            else:
                limits = WorkerLimits(2, TIMEOUT_S, 10, 20.0, 2000.0)
                pool = await stack.enter_async_context(open_workers(WorkerSetup(KINDS, (), 8), limits))
            setup = make_setup(
                None,
                DrawnEngine(share_bad=0.02),
                create_environment=lambda kind, crashes: pool.create(kind, {}, crashes),
                attempts=ATTEMPTS,
                step_timeout_s=10.0,
                episode_timeout_s=60.0,
            )
            collector = make_collector(
                None,
                writer,
                setup=setup,
                server_size=PLACES,
                left=lambda indices: [spec_of(index, seed) for index in indices],
            )
            collector._whole = lambda: EPISODES
            async with asyncio.TaskGroup() as jobs:
                disturbing = jobs.create_task(disturb(draw, servers))
                watching = jobs.create_task(note_processes(lived))
                async with asyncio.timeout(RUN_LIMIT_S):
                    await collector.collect(FakeSource(EPISODES, size=EPISODES))
                disturbing.cancel()
                watching.cancel()
    finally:
        for server in servers:
            server.end()
    check(seed, writer.trajectories, lived)
    return writer.trajectories


async def note_processes(lived):
    while True:
        lived |= {ProcessId.of(pid) for pid in descendants(os.getpid())}
        await asyncio.sleep(0.05)


def check(seed, trajectories, lived):
    keys = collections.Counter(str(trajectory.key) for trajectory in trajectories)
    assert len(keys) == EPISODES, f"seed {seed}: {EPISODES - len(keys)} episodes are lost"
    assert set(keys.values()) == {1}, f"seed {seed}: an episode was recorded twice"
    for trajectory in trajectories:
        reasons = [lost.failure.message for lost in trajectory.lost_attempts]
        assert all(reasons), f"seed {seed}: an attempt without its reason"
        assert len(reasons) < ATTEMPTS
        assert (trajectory.failure is None) == (trajectory.status is Status.COMPLETED)
    deadline = time.monotonic() + 10
    while left := [one.pid for one in lived if one.is_running]:
        assert time.monotonic() < deadline, f"seed {seed}: processes are left: {left}"
        time.sleep(0.05)
    if seed % 2:
        return  # a server and a guard may have been killed together: nobody is left to tidy up
    while folders := list(Path(tempfile.gettempdir()).glob("rl-agent-*")):
        assert time.monotonic() < deadline, f"seed {seed}: {len(folders)} folders are left"
        time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    statuses, lost = collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        for seed in range(options.seed, options.seed + options.runs):
            began = time.monotonic()
            trajectories = asyncio.run(play(seed))
            statuses.update(str(one.status) for one in trajectories)
            reasons = [each.failure.kind for one in trajectories for each in one.lost_attempts]
            lost.update(reasons)
            place = "servers" if seed % 2 else "workers"
            shutil.rmtree(folder, ignore_errors=True)
            Path(folder).mkdir(exist_ok=True)
            print(
                f"seed {seed} ({place}): {len(trajectories)} ended, {len(reasons)} lost attempts,"
                f" {time.monotonic() - began:.1f} s",
                flush=True,
            )
    print(json.dumps({"runs": options.runs, "statuses": statuses, "lost_attempts": lost}))


if __name__ == "__main__":
    main()
