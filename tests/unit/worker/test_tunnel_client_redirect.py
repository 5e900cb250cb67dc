"""A worker's tunnel gives its keys to the address of its manager alone."""

import asyncio

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from rl_agent.worker.manager_client import ManagerCalls
from rl_agent.worker.tunnel_client import WorkerTunnel


async def test_a_tunnel_follows_no_redirect_with_its_keys():
    asked, reached = asyncio.Event(), []

    async def elsewhere(request):
        reached.append(dict(request.headers))
        return web.Response()

    thief = web.Application()
    thief.router.add_get("/{path:.*}", elsewhere)
    async with TestServer(thief) as other, aiohttp.ClientSession() as session:

        async def redirect(request):
            if asked.is_set():
                again.set()
            asked.set()
            raise web.HTTPTemporaryRedirect(str(other.make_url("/tunnel")))

        again = asyncio.Event()
        app = web.Application()
        app.router.add_get("/{path:.*}", redirect)
        async with TestServer(app) as server:
            calls = ManagerCalls(session, str(server.make_url("/")), lambda: "token")
            running = asyncio.ensure_future(WorkerTunnel(session, calls, "e1", "http://127.0.0.1:9").run())
            async with asyncio.timeout(10):
                await again.wait()  # so the first redirect is over
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert reached == []
