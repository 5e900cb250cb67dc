"""A sender with three versions of about 25 pieces, and an empty receiver."""

import asyncio
import threading

import pytest
from aiohttp import web

from rl_agent.weights.server.http_server import version_file
from tests.support.weight_transfers import host, new_host
from tests.unit.weights.weight_versions import publish_steps

ROWS = 1500


@pytest.fixture
def sender(tmp_path):
    with host(publish_steps(tmp_path / "sender", 3, rows=ROWS)) as running:
        yield running


@pytest.fixture
def newest(sender):
    return sender.store.newest


@pytest.fixture
def receiver(tmp_path):
    with new_host(tmp_path / "receiver") as running:
        yield running


@pytest.fixture
def http_address(sender):
    """The sender's store over HTTP, in an event loop of its own."""
    loop, started, addresses = asyncio.new_event_loop(), threading.Event(), []

    async def file(request):
        if request.headers.get("Authorization") != "Bearer token":
            raise web.HTTPUnauthorized
        with sender.store.hold(int(request.match_info["number"])) as snapshot:
            return version_file(snapshot, request.match_info["file"])

    async def serve():
        app = web.Application()
        app.router.add_get("/version-{number}/{file}", file)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        addresses.append(runner.addresses[0])
        stopping = asyncio.Event()
        addresses.append(stopping)
        started.set()
        await stopping.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    started.wait(30)
    yield f"http://127.0.0.1:{addresses[0][1]}"
    loop.call_soon_threadsafe(addresses[1].set)
    thread.join(30)
    loop.close()
