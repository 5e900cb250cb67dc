"""Environment servers for tests, in this event loop, with real workers below them."""

import asyncio
from contextlib import asynccontextmanager

from aiohttp import web

from rl_agent.env.remote import server_api, wire
from rl_agent.env.remote.server import EnvServerSettings, serve
from rl_agent.env.remote.server_link import LinkSettings
from rl_agent.env.remote.server_pool import open_servers
from rl_agent.env.remote.worker import WorkerSetup
from rl_agent.http.tokens import TokenCheck
from tests.unit.env.remote.pools import KINDS, limits

TOKEN = "the-token"


def settings(**changes):
    usual = {
        "host": "127.0.0.1",
        "port": 0,
        "places": 8,
        "setup": WorkerSetup(KINDS, (), 8),
        "limits": limits(),
        "tokens": TokenCheck((TOKEN,), None),
        "tls": None,
        "drain_s": 10.0,
        "client_timeout_s": 20.0,
    }
    return EnvServerSettings(**usual | changes)


@asynccontextmanager
async def server(**changes):
    """Give a server's address and the event that makes it leave."""
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    leaving = asyncio.Event()
    async with asyncio.TaskGroup() as jobs:
        serving = jobs.create_task(serve(settings(**changes), url.set_result, leaving))
        try:
            yield await url, leaving, serving
        finally:
            serving.cancel()


@asynccontextmanager
async def connected(*urls, token=TOKEN, timeout_s=5.0, wait_s=5.0, spool_bytes=2**20, tls=None, **more):
    link = LinkSettings(token, tls, timeout_s, **more)
    async with open_servers(urls, link, wait_s=wait_s, spool_bytes=spool_bytes) as pool:
        yield pool


STATUS = {"version": wire.VERSION, "kinds": {}, "places": 100, "used": 0, "is_draining": False}


@asynccontextmanager
async def false_server(answer=lambda question: None):
    """A server that answers pings, and to a call sends what `answer` makes of it; gives its address."""

    async def status(request):
        return web.json_response(STATUS)

    async def instances(request):
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        async for received in connection:
            question = wire.read_question(received.data)
            if isinstance(question, wire.Ping):
                await connection.send_bytes(wire.encode(wire.Pong()))
            elif (frame := answer(question)) is not None:
                await connection.send_bytes(frame)
        return connection

    app = web.Application()
    app.add_routes([web.get(server_api.STATUS, status), web.get(server_api.INSTANCES, instances)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
