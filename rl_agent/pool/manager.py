"""The manager's process: settings in, a listening socket out, until a signal."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from rl_agent.config import PoolConfig
from rl_agent.errors import ConfigError
from rl_agent.pool.api import PoolApi
from rl_agent.pool.batches import Batches
from rl_agent.pool.guard import guard
from rl_agent.pool.openai_api import OpenAiApi
from rl_agent.pool.openapi import openapi_of
from rl_agent.tls import serving

log = logging.getLogger(__name__)
STOP_TIMEOUT_S = 2.0
ENGINE_KEEPALIVE_S = 3.0
"""Below the 5 s after which an engine drops an idle connection under our next request."""


async def serve(config: PoolConfig, on_listening: Callable[[str], None], versions: Path) -> None:
    """Serve until SIGTERM or SIGINT; the rest as `running_manager`."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running_manager(config, versions) as (url, _):
        on_listening(url)
        await stop.wait()


@asynccontextmanager
async def running_manager(config: PoolConfig, versions: Path) -> AsyncIterator[tuple[str, Batches]]:
    """A manager that serves while the block runs: its URL and what it holds.

    Below `versions` a trainer of this host keeps its weight versions.
    Raises ConfigError if the address cannot be listened on, StoreError if the journal cannot be used.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=ENGINE_KEEPALIVE_S)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        batches = Batches(config)
        async with asyncio.TaskGroup() as jobs:
            ready = asyncio.Event()
            running = [
                jobs.create_task(batches.pool.run(ready), name="pool"),
                jobs.create_task(batches.run_jobs(), name="results"),
            ]
            runner = web.AppRunner(
                application(config, batches, session, versions),
                access_log=None,
                handler_cancellation=True,
                shutdown_timeout=STOP_TIMEOUT_S,
            )
            try:
                await ready.wait()
                batches.restore()
                await runner.setup()
                yield await _listen(runner, config), batches
            finally:
                await runner.cleanup()
                for job in running:
                    job.cancel()


def application(
    config: PoolConfig, batches: Batches, session: aiohttp.ClientSession, versions: Path
) -> web.Application:
    app = web.Application(
        middlewares=[guard(config, os.environ)], client_max_size=config.max_body_mib * 1024 * 1024
    )
    routes = [
        *PoolApi(config, batches, session, versions).routes(),
        *OpenAiApi(config, batches.pool).routes(),
    ]
    description = openapi_of(routes)

    async def openapi(request: web.Request) -> web.Response:
        return web.json_response(description)

    app.add_routes([*routes, web.get("/openapi.json", openapi)])
    return app


async def _listen(runner: web.AppRunner, config: PoolConfig) -> str:
    context = None if config.tls_certificate is None else serving(config.tls_certificate, config.tls_key)
    site = web.TCPSite(runner, config.host, config.port, backlog=1024, ssl_context=context)
    try:
        await site.start()
    except OSError as error:
        where = f"host={config.host} port={config.port}"
        raise ConfigError(f"{where} cannot be listened on: {error.strerror}") from error
    host, port = runner.addresses[0][:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if context else 'http'}://{shown}:{port}"
