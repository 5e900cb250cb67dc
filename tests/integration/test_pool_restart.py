"""A manager that is killed outright: its successor goes on, and its engines come back by themselves."""

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from rl_agent.cluster.address import free_port
from tests.integration.test_pool_worker import worker
from tests.pool_setup import expected, item

WORDS = ("lease_s=1.0", "heartbeat_s=0.2", "probe_interval_s=0.2")


@asynccontextmanager
async def manager_process(port: int, journal: Path, *more: str):
    command = ("-m", "rl_agent.cli", "manager", f"port={port}", f"journal={journal}", *WORDS, *more)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def test_a_killed_manager_loses_no_request_and_its_workers_come_back(tmp_path):
    port, count = free_port(), 40
    journal = tmp_path / "journal.jsonl"
    seen: list[dict] = []
    async with aiohttp.ClientSession() as session:

        async def take(url: str, at_least: int) -> None:
            after = seen[-1]["cursor"] if seen else 0
            path = f"/runs/run/samples?after={after}&min={at_least}&wait_s=60"
            async with session.get(url + path) as answer:
                assert answer.status == 200, await answer.text()
                seen.extend(json.loads(line) for line in (await answer.read()).splitlines())

        slow = ("--interval", "0.005")
        async with (
            manager_process(port, journal) as (first, url),
            worker(url, tmp_path, is_direct=False, extra=slow),
        ):
            items = [item(number, 20 + 10 * number) for number in range(count)]
            async with session.post(url + "/runs/run/requests", json={"requests": items}) as answer:
                assert answer.status == 202
            await take(url, 5)
            os.kill(first.pid, signal.SIGKILL)
            await first.wait()
            async with manager_process(port, journal) as (_, again):
                assert again == url
                while len(seen) < count:
                    await take(url, 1)
    assert sorted(sample["id"] for sample in seen) == sorted(f"r{number}" for number in range(count))
    for sample in seen:
        number = int(sample["id"][1:])
        assert sample["token_ids"] == expected(20 + 10 * number, number)
