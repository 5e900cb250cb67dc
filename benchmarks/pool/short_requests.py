"""Measures what a short request costs the processes of a manager and its client: 512 at once.

    python benchmarks/pool/short_requests.py [--rounds 10] [--requests 512] [--apart 3.6]

Prompts of 45 tokens; responses of 24 from an engine that samples nothing, each 0.1 to 0.4 s after its
request. Processor time, since other work may share the machine; the first round is left out. `--apart`:
seconds between two rounds, as a training takes them.
"""

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import aiohttp
import psutil
import uvloop
from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.connections import EngineConnections
from rl_agent.engine.packed import KEEPALIVE_S, PATH, SERVER_KEEPALIVE_S, pack
from rl_agent.engine.wire import Sampling
from rl_agent.system.flag_parser import FlagParser
from rl_agent.system.owned import end_owned, start_owned

ROOT = str(Path(__file__).resolve().parents[2])
PROMPT, TOKENS = list(range(100, 145)), 24
SAMPLING = Sampling(1.0, 1.0, -1, 0.0, TOKENS, 1, stop_token_ids=(2,), vocab_size=512, timeout_s=600.0)


def engine() -> web.Application:
    """Make an engine with our route, for responses that are sent whole."""
    frame = pack(range(TOKENS), [-0.5] * TOKENS, "length", None)
    card = {"id": "m", "root": "/m", "max_model_len": 2048}
    pages = {"/v1/models": {"data": [card]}, "/openapi.json": {"paths": {"/v1/completions": {}, PATH: {}}}}

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(random.uniform(0.1, 0.4))
        return web.Response(body=frame)

    async def page(request: web.Request) -> web.Response:
        return web.json_response(pages.get(request.path, {}))

    app = web.Application()
    app.add_routes([web.post(PATH, answer), web.get("/{path:.*}", page)])
    return app


def serve_engine(port: int) -> None:
    web.run_app(
        engine(),
        host="127.0.0.1",
        port=port,
        access_log=None,
        print=None,
        keepalive_timeout=SERVER_KEEPALIVE_S,
    )


async def joined(manager: str, engine_url: str, requests: int) -> None:
    """Register the engine and wait until it is ready."""
    body = {"name": "engine", "url": engine_url, "capacity": requests}
    async with aiohttp.ClientSession(manager) as session, asyncio.timeout(60):
        while True:
            try:
                async with session.post("/engines", json=body, raise_for_status=True):
                    break
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.1)
        while True:
            async with session.get("/status") as answer:
                if any(each["state"] == "ready" for each in (await answer.json())["engines"]):
                    return
            await asyncio.sleep(0.1)


async def started(stack: AsyncExitStack, *words: str) -> psutil.Process:
    """Start a Python that ends with the stack."""
    environment, no = {**os.environ, "PYTHONPATH": ROOT}, subprocess.DEVNULL
    process = await start_owned(sys.executable, *words, env=environment, stdout=no, stderr=no)
    stack.push_async_callback(end_owned, process, 10)
    return psutil.Process(process.pid)


async def play(client: EngineClient, requests: int, number: int) -> None:
    """Send the requests of a round and wait for all responses."""
    async with asyncio.TaskGroup() as jobs:
        for index in range(requests):
            sampling = replace(SAMPLING, seed=index, group=f"{number}-{index // 8}")
            name = f"{number}-{index}"
            jobs.create_task(client.generate(PROMPT, sampling, request_id=name, decode=lambda *_: ""))


async def measure(options: argparse.Namespace, journal: Path) -> list[tuple[float, float]]:
    """Return the microseconds of manager and client for a request, for each round."""
    at, engine_at = free_port("127.0.0.1"), free_port("127.0.0.1")
    url, settings, rounds = f"http://127.0.0.1:{at}", ClientSettings(600, 0), []
    async with AsyncExitStack() as stack:
        manager = await started(stack, "-m", "rl_agent.cli", "manager", f"port={at}", f"journal={journal}")
        await started(stack, __file__, "--serve", str(engine_at))
        await joined(url, f"http://127.0.0.1:{engine_at}", options.requests)
        connections = EngineConnections(None, KEEPALIVE_S)
        stack.push_async_callback(connections.close)
        client = EngineClient(url, settings, identify=lambda served: 0, connections=connections)
        await stack.enter_async_context(client)
        for number in range(options.rounds + 1):
            before, own_before = sum(manager.cpu_times()[:2]), time.process_time()
            await play(client, options.requests, number)
            spent_s = (sum(manager.cpu_times()[:2]) - before, time.process_time() - own_before)
            rounds.append((spent_s[0] / options.requests * 1e6, spent_s[1] / options.requests * 1e6))
            await asyncio.sleep(options.apart)
    return rounds[1:]


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--apart", type=float, default=3.6)
    parser.add_argument("--serve", type=int, metavar="PORT", help="be the engine")
    options = parser.parse_args()
    if options.serve:
        serve_engine(options.serve)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        rounds = uvloop.run(measure(options, Path(folder, "pool.sqlite")))
    for name, values in zip(("manager", "client"), zip(*rounds, strict=True), strict=True):
        middle, low, high = statistics.median(values), min(values), max(values)
        print(f"{name}: {middle:.0f} us for a request (median; {low:.0f} to {high:.0f})")
    return 0


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
