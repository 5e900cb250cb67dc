"""What a step costs where environments live: in this process, in worker processes, on a server over loopback.

    python benchmarks/rollout/environment_steps.py [--steps 20000] [--instances 64] [--workers 1]

The environment answers at once, so all that is measured is the way to it and back. `alone` is one instance
that steps again as soon as it is answered: the delay of a step. `together` are many instances at once: how
many steps a second one collector can make. CPU is that of this process, the collector's. Servers and workers
share the machine's cores with it.
"""

import asyncio
import os
import resource
import statistics
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.env.registry import EnvironmentRegistry
from rl_agent.env.remote.placement import WorkerLimits
from rl_agent.env.remote.server_link import LinkSettings
from rl_agent.env.remote.server_pool import open_servers
from rl_agent.env.remote.worker import WorkerSetup
from rl_agent.env.remote.worker_pool import open_workers
from rl_agent.flag_parser import FlagParser
from rl_agent.types import Observation, StepResult, Task

KIND = "echo"
TASK = Task("t", "hello", KIND, "easy")


class EchoEnvironment:
    """Says its action back, with a text of the length of a small page."""

    is_cooperative = True

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        return StepResult(Observation(action * 100))

    async def close(self) -> None:
        pass


def setup() -> WorkerSetup:
    kinds = {KIND: "benchmarks.rollout.environment_steps:EchoEnvironment"}
    return WorkerSetup(kinds, (Path(__file__).resolve().parents[2],), 8)


@asynccontextmanager
async def here(_options):
    registry = EnvironmentRegistry(setup())
    yield lambda: registry.create(KIND)


@asynccontextmanager
async def in_workers(options):
    limits = WorkerLimits(options.workers, 60.0, 10**6, 1e6, 1e6)
    async with open_workers(setup(), limits) as pool:
        yield lambda: pool.create(KIND)


@asynccontextmanager
async def on_a_server(options):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rl_agent.cli", "env-server", "--listen", "127.0.0.1:0"),
        *("--workers", str(options.workers), "--places", "1000"),
        f"+kinds.{KIND}={setup().kinds[KIND]}",
        f"module_folders=[{setup().module_folders[0]}]",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        async with open_servers(
            (url,), LinkSettings(None, None, 20.0), wait_s=60.0, spool_bytes=2**20
        ) as pool:
            yield lambda: pool.create(KIND)
    finally:
        process.terminate()
        await process.wait()


async def step_often(create, steps: int) -> list[float]:
    """Play one instance; returns the seconds of each step."""
    instance = create()
    await instance.reset(TASK, 0)
    took = []
    for _ in range(steps):
        began = time.perf_counter()
        await instance.step("look around")
        took.append(time.perf_counter() - began)
    await instance.close()
    return took


async def measure(place, options) -> None:
    async with place(options) as create:
        await step_often(create, 200)
        alone = await step_often(create, options.steps // 10)
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        each = options.steps // options.instances
        await asyncio.gather(*(step_often(create, each) for _ in range(options.instances)))
        seconds = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    steps = each * options.instances
    print(
        f"{place.__name__:<12} alone {statistics.median(alone) * 1e6:7.0f} us a step   together"
        f" {steps / seconds:8.0f} steps/s   {cpu_s / steps * 1e6:6.0f} us of this process's CPU a step",
        flush=True,
    )


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--instances", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    print(f"{options.instances} instances, {options.workers} workers, {os.cpu_count()} cores")
    for place in (here, in_workers, on_a_server):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(measure(place, options))
    return 0


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
