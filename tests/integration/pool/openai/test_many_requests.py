"""Requests at once, as many as a large rollout sends, are answered whole, and no connection is cut."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import pytest

from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.wire import Sampling
from rl_agent.system.files import allow_open_files
from tests.support.pool_setup import expected
from tests.support.pool_world import EOS

MANAGER = ("rl_agent.cli", "manager", "port=0", "lease_s=60", "stall_timeout_s=100")


@contextmanager
def first_line_of(*module: str) -> Iterator[str]:
    """Run a module until the block ends; yields the first line that it prints."""
    words = [sys.executable, "-m", *module]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.terminate()


async def join(manager: str, engines: list[str], capacity: int) -> None:
    """Register the engines, and wait until all are ready."""
    async with aiohttp.ClientSession() as session:
        for url in engines:
            body = {"name": url, "url": url, "capacity": capacity}
            async with session.post(f"{manager}/engines", json=body) as answer:
                assert answer.status == 201, await answer.text()
        states: list[str] = []
        while states != ["ready"] * len(engines):
            await asyncio.sleep(0.2)
            async with session.get(f"{manager}/status") as answer:
                states = [engine["state"] for engine in (await answer.json())["engines"]]


async def whole_responses(manager: str, requests: int, length: int) -> int:
    """Send requests all at once; returns how many responses are whole."""
    sampling = Sampling(0.0, 1.0, -1, 0.0, max_tokens=4096, seed=0, stop_token_ids=(EOS,))
    settings = ClientSettings(request_timeout_s=500.0, retries=2)
    async with EngineClient(manager, settings, identify=lambda served: 0) as client:

        async def is_whole(number: int) -> bool:
            response = await client.generate((length, number, 5, 6), sampling, request_id=f"r{number}")
            return list(response.token_ids) == expected(length, number)

        return sum(await asyncio.gather(*(is_whole(number) for number in range(requests))))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("requests", "engines", "length"),
    [
        (600, 2, 8),
        pytest.param(2048, 4, 8, marks=pytest.mark.extended),
        pytest.param(5000, 200, 64, marks=pytest.mark.extended),
    ],
)
async def test_requests_that_come_all_at_once_are_all_answered_whole(requests, engines, length):
    allow_open_files()
    simulated = ("tests.integration.pool.openai.many_engines", str(engines), "16")
    with first_line_of(*simulated) as urls, first_line_of(*MANAGER) as manager:
        await join(manager.strip(), json.loads(urls), 2 * requests // engines)
        assert await whole_responses(manager.strip(), requests, length) == requests
