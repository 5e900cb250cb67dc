"""The worker's end of the tunnel: it connects again whenever its connection breaks."""

import asyncio
from types import SimpleNamespace

import aiohttp
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from yarl import URL

from rl_agent.worker import tunnel_client
from rl_agent.worker.tunnel_client import WorkerTunnel


async def test_broken_tunnel_reconnects_with_the_headers_valid_by_then(monkeypatch):
    monkeypatch.setattr(tunnel_client, "RECONNECT_S", 0.0)
    seen, third = [], asyncio.Event()

    async def tunnel(request):
        assert request.path == "/engines/e/tunnel"
        seen.append(request.headers["X-Secret"])
        calls.engine_headers = {"X-Secret": str(len(seen))}
        if len(seen) == 1:
            return web.Response(status=503)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if len(seen) == 3:
            third.set()
        await socket.close()
        return socket

    async with (
        RawTestServer(tunnel) as server,
        aiohttp.ClientSession() as session,
        asyncio.TaskGroup() as jobs,
    ):
        calls = SimpleNamespace(url=URL(str(server.make_url("/"))), engine_headers={"X-Secret": "0"})
        engine = SimpleNamespace(url="http://127.0.0.1:1", slot=0)
        job = jobs.create_task(WorkerTunnel(session, calls, "e", engine).run())
        async with asyncio.timeout(10):
            await third.wait()
        job.cancel()
    assert seen[:3] == ["0", "1", "2"]


async def test_a_manager_that_is_away_for_long_costs_one_line(monkeypatch, caplog):
    monkeypatch.setattr(tunnel_client, "RECONNECT_S", 0.0)
    caplog.set_level("INFO")
    tries, fifth = [], asyncio.Event()

    class Session:
        def ws_connect(self, *_, **__):
            tries.append(1)
            if len(tries) == 5:
                fifth.set()
            raise aiohttp.ClientError("refused")

    calls = SimpleNamespace(url=URL("http://127.0.0.1:1"), engine_headers={})
    engine = SimpleNamespace(url="http://127.0.0.1:1", slot=0)
    async with asyncio.TaskGroup() as jobs:
        job = jobs.create_task(WorkerTunnel(Session(), calls, "e", engine).run())
        async with asyncio.timeout(10):
            await fifth.wait()
        job.cancel()
    assert caplog.text.count("refused") == 1
