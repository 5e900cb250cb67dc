"""Requests to an engine over the connection that its worker holds: both ends, over a real websocket."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from yarl import URL

from rl_agent.pool.engines import tunnel_frames, tunnel_server
from rl_agent.pool.engines.answers import StreamError
from rl_agent.pool.engines.tunnel_server import TunnelTransport
from rl_agent.worker.tunnel_client import WorkerTunnel


def manager_of(transport):
    async def tunnel(request):
        socket = web.WebSocketResponse(max_msg_size=tunnel_frames.MAX_FRAME_BYTES)
        await socket.prepare(request)
        await transport.serve(socket)
        return socket

    return RawTestServer(tunnel)


async def engine_answers(request):
    if request.path == "/health":
        return web.Response()
    if request.path == "/metrics":
        await asyncio.Event().wait()
    return web.Response(status=201, body=await request.read() * 2)


@asynccontextmanager
async def tunnel():
    """A transport whose worker is connected to an engine."""
    transport = TunnelTransport()
    async with (
        manager_of(transport) as manager,
        RawTestServer(engine_answers) as serving,
        aiohttp.ClientSession() as session,
        asyncio.TaskGroup() as jobs,
    ):
        calls = SimpleNamespace(url=URL(str(manager.make_url("/"))), engine_headers={})
        engine = SimpleNamespace(url=str(serving.make_url("/")), slot=0)
        job = jobs.create_task(WorkerTunnel(session, calls, "e", engine).run())
        try:
            yield transport, job
        finally:
            job.cancel()


async def ask(transport, method, path, body=None):
    async with transport.open(method, path, body) as answer:
        parts = []
        while part := await answer.read():
            parts.append(part)
        return answer.status, b"".join(parts)


async def test_requests_travel_over_the_workers_connection_side_by_side():
    async with tunnel() as (transport, _):
        answers = await asyncio.gather(*(ask(transport, "POST", "/generate", b"%d" % n) for n in range(8)))
        assert answers == [(201, b"%d%d" % (n, n)) for n in range(8)]
        assert await ask(transport, "GET", "/health") == (200, b"")


async def test_a_worker_passes_on_nothing_but_what_managers_may_ask():
    async with tunnel() as (transport, _):
        with pytest.raises(StreamError, match="/pause is not for managers"):
            await ask(transport, "POST", "/pause")


async def test_what_is_under_way_breaks_with_the_connection_and_says_so():
    async with tunnel() as (transport, job):
        hanging = asyncio.create_task(ask(transport, "GET", "/metrics"))
        await ask(transport, "GET", "/health")
        job.cancel()
        with pytest.raises(StreamError, match="the worker's connection broke"):
            await hanging


async def test_without_a_worker_a_request_waits_a_moment_and_fails(monkeypatch):
    monkeypatch.setattr(tunnel_server, "CONNECT_WAIT_S", 0.01)
    with pytest.raises(StreamError, match="its worker is not connected"):
        await ask(TunnelTransport(), "GET", "/health")


async def test_a_worker_that_sends_what_is_no_frame_is_cut_off():
    transport = TunnelTransport()
    async with (
        manager_of(transport) as manager,
        aiohttp.ClientSession() as session,
        session.ws_connect(manager.make_url("/engines/e/tunnel")) as socket,
        asyncio.timeout(5),
    ):
        await socket.send_bytes(b"nonsense")
        assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
