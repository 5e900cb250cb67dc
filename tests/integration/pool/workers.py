"""A worker with a simulated engine in a process of its own."""

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from rl_agent.paths import PROJECT_ROOT
from rl_agent.pool.settings import load_weights
from rl_agent.worker.engine_process import EngineCommand
from rl_agent.worker.main import Worker
from rl_agent.worker.settings import WorkerSettings

ENGINE = PROJECT_ROOT / "tests" / "support" / "streaming_engine.py"


class SimulatedCommand(EngineCommand):
    def words(self, model: str, port: int) -> list[str]:
        return [sys.executable, str(ENGINE), "--port", str(port), "--root", model, *self.extra]


def settings(pool_url: str, folder: Path, **more) -> WorkerSettings:
    loads = more.pop("loads_weights", False)
    command = SimulatedCommand("vllm", "127.0.0.1", None, more.pop("extra", ()), os.environ, loads)
    values = {
        "manager": pool_url,
        "read_token": lambda: None,
        "name": "spot-1",
        "command": command,
        "model": "model-a",
        "is_direct": True,
        "capacity": None,
        "price_per_hour": 0.0,
        "kind": "",
        "manager_timeout_s": 20.0,
        "start_timeout_s": 20.0,
        "drain_s": 5.0,
        "notice": None,
        "log": folder / "engine.log",
        "weights": load_weights([f"store={folder}"]),
        "address": "127.0.0.1",
    }
    return WorkerSettings(**(values | more))


@asynccontextmanager
async def worker(pool_url: str, folder: Path, **more):
    leaving = asyncio.Event()
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as jobs:
        job = jobs.create_task(Worker(settings(pool_url, folder, **more), session).run(leaving))
        try:
            yield leaving, job
        finally:
            leaving.set()


def engine_pids(folder: Path) -> list[int]:
    lines = (folder / "engine.log").read_text().splitlines()
    return [int(line.split()[1]) for line in lines if "pid" in line]
