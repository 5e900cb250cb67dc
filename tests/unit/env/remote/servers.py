"""Environment servers for tests, in this event loop, with real workers below them."""

import asyncio
from contextlib import asynccontextmanager

from rl_agent.env.remote.server import EnvServerSettings, serve
from rl_agent.env.remote.server_link import LinkSettings
from rl_agent.env.remote.server_pool import open_servers
from rl_agent.env.remote.worker import WorkerSetup
from rl_agent.service.tokens import TokenCheck
from tests.unit.env.remote.pools import KINDS, limits

TOKEN = "the-token"


@asynccontextmanager
async def server(*, port=0, **changes):
    """Give a server's address and the event that makes it leave."""
    settings = {
        "host": "127.0.0.1",
        "port": port,
        "places": 8,
        "setup": WorkerSetup(KINDS, (), 8),
        "limits": limits(),
        "tokens": TokenCheck((TOKEN,), None),
        "tls": None,
        "drain_s": 10.0,
        "client_timeout_s": 20.0,
    }
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    leaving = asyncio.Event()
    async with asyncio.TaskGroup() as jobs:
        serving = jobs.create_task(serve(EnvServerSettings(**settings | changes), url.set_result, leaving))
        try:
            yield await url, leaving, serving
        finally:
            serving.cancel()


@asynccontextmanager
async def connected(*urls, token=TOKEN, timeout_s=5.0, wait_s=5.0, spool_bytes=2**20, tls=None, **more):
    link = LinkSettings(token, tls, timeout_s, **more)
    async with open_servers(urls, link, wait_s=wait_s, spool_bytes=spool_bytes) as pool:
        yield pool
