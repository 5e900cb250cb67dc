"""The manager's memory with thousands of screenshots in flight, beside as many requests without images.

    python benchmarks/pool/image_memory.py [--requests 10000] [--engines 16] [--capacity 256]

Every request shows a screenshot of 1000 x 800 pixels of its own, which no engine has. Simulated engines, in
this process with the clients, read requests and answer none before all are open: those that have places hold
theirs, the others wait in the manager. Then all are answered. `most` is the manager's highest resident memory
up to then (VmHWM); a manager of its own measures each kind.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import uvloop
from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.pool.image_requests import Screenshots
from benchmarks.pool.relay import started
from rl_agent.engine.packed import MISSING, PATH, REQUEST, ImageContent, pack
from rl_agent.engine.wire import Sampling, completion_request
from rl_agent.system.flag_parser import FlagParser

MANAGER = ("-m", "rl_agent.cli", "manager", "port=0", "stall_timeout_s=3600", "lease_s=3600")
"""It takes no engine for hanging that holds its requests."""
TIMEOUT = aiohttp.ClientTimeout(total=None)
SAMPLING = Sampling(0.0, 1.0, -1, 0.0, 4, 3)


class Engine:
    """An engine that holds every request until it may answer."""

    def __init__(self, may_answer: asyncio.Event) -> None:
        self._may_answer = may_answer
        self._images = set[str]()
        self.images_sent = 0
        self.running_now = 0

    async def generate(self, request: web.Request) -> web.StreamResponse:
        call = REQUEST.decode(await request.content.read())
        sent = {image.digest for image in call.images if image.content is not None}
        self.images_sent += len(sent)
        self._images |= sent
        if missing := sorted({image.digest for image in call.images} - self._images):
            return web.json_response({"missing": missing}, status=MISSING)
        prompt = call.prompt if call.images else ()
        del call  # its images
        response = web.StreamResponse()
        await response.prepare(request)
        self.running_now += 1
        try:
            await response.write(pack([7], [-0.5], None, None, prompt))
            await self._may_answer.wait()
            await response.write(pack([7, 7, 7], [-0.5] * 3, "length", None))
        finally:
            self.running_now -= 1
        return response

    async def about(self, request: web.Request) -> web.Response:
        card = {"id": "served", "root": "/models/one", "max_model_len": 512}
        pages = {
            "/openapi.json": {"paths": {"/v1/completions": {}, PATH: {}}},
            "/v1/models": {"data": [card]},
        }
        return web.json_response(pages.get(request.path, {}))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application(client_max_size=2**26)
        app.router.add_post(PATH, self.generate)
        app.router.add_get("/{path:.*}", self.about)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def memory_of(process: int) -> dict[str, int]:
    """Return the bytes of resident memory now (VmRSS) and at most (VmHWM)."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return {
        line.split(":")[0]: int(line.split()[1]) * 1024
        for line in lines
        if line.startswith(("VmRSS", "VmHWM"))
    }


async def measure(options: argparse.Namespace, folder: Path, *, has_images: bool) -> tuple[int, int]:
    """Return the manager's memory in bytes before the requests, and the highest with all of them open."""
    may_answer, files = asyncio.Event(), Screenshots(folder)
    connector = aiohttp.TCPConnector(limit=0)
    async with AsyncExitStack() as stack:
        manager, process = stack.enter_context(started(*MANAGER))
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=TIMEOUT))
        engines = [Engine(may_answer) for _ in range(options.engines)]
        for engine in engines:
            url = await stack.enter_async_context(engine.running())
            body = {"name": url, "url": url, "capacity": options.capacity}
            async with session.post(manager + "/engines", json=body) as answer:
                assert answer.status == 201, await answer.text()

        async def counts() -> tuple[int, int]:
            async with session.get(manager + "/status") as answer:
                current = await answer.json()
            ready = sum(engine["state"] == "ready" for engine in current["engines"])
            return current["requests"]["open"], ready

        async def until(is_true: Callable[[int, int], bool]) -> None:
            while not is_true(*await counts()):  # noqa: ASYNC110 - what is waited for is not an event
                await asyncio.sleep(0.5)

        await until(lambda _, ready: ready == options.engines)
        before = memory_of(process)["VmRSS"]

        def request(number: int) -> bytes:
            image = files.take(f"{has_images} {number}")
            images = [ImageContent(image.digest, image.path.read_bytes())] if has_images else []
            image.path.unlink()
            return completion_request(
                "/models/one", [1, 9, 2], SAMPLING, f"r{number}", needs_text=False, images=images
            )

        async def ask(number: int) -> None:
            async def body() -> AsyncIterator[bytes]:
                yield request(number)  # nothing of it is left here once it is sent

            headers = {"Content-Type": "application/json"}
            async with session.post(manager + "/v1/completions", data=body(), headers=headers) as answer:
                current = await answer.json()
            assert answer.status == 200, current
            assert current["choices"][0]["token_ids"] == [7] * 4, current

        async with asyncio.TaskGroup() as jobs:
            for number in range(options.requests):
                jobs.create_task(ask(number))
                if number % options.wave == 0:
                    await until(lambda current, _, least=number - options.wave: current >= least)
            places = min(options.requests, options.engines * options.capacity)
            is_full = lambda: sum(engine.running_now for engine in engines) == places  # noqa: E731
            await until(lambda current, _: current == options.requests and is_full())
            most = memory_of(process)["VmHWM"]
            may_answer.set()
        sent = sum(engine.images_sent for engine in engines)
        assert sent == options.requests * has_images, f"engines were sent {sent} images"
        return before, most


async def compare(options: argparse.Namespace, folder: Path) -> None:
    size = Screenshots(folder).size_bytes
    print(f"{options.requests} requests open, {options.engines} engines with {options.capacity} places each")
    print("requests      before    most  MiB of the manager; kB per request")
    for name, has_images in (("of text", False), ("with images", True)):
        before, most = await measure(options, folder, has_images=has_images)
        each = (most - before) / options.requests / 1e3
        print(f"{name:<12} {before / 2**20:>7.0f} {most / 2**20:>7.0f} {each:>8.1f}", flush=True)
    print(f"the images are {size / 1e3:.0f} kB each, {size * options.requests / 2**20:,.0f} MiB in all")


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--engines", type=int, default=16)
    parser.add_argument("--capacity", type=int, default=256)
    parser.add_argument("--wave", type=int, default=256, help="requests that may be on their way")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="image-memory-") as folder:
        uvloop.run(compare(options, Path(folder)))
    return 0


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
