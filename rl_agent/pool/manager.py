"""The process of a pool's manager: it serves until it is told to leave."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

import aiohttp
from aiohttp import web

from rl_agent.config.plan import PoolConfig
from rl_agent.engine.connections import KEEPALIVE_S
from rl_agent.engine.packed import ROUTE_KEEPALIVE_S
from rl_agent.http.kept_connections import KeptConnections
from rl_agent.http.server import HttpListener
from rl_agent.http.tls import serving
from rl_agent.pool.api.auth import guard
from rl_agent.pool.api.openai_api import OpenAiApi
from rl_agent.pool.api.routes import PoolApi
from rl_agent.pool.engines.link import CONNECT_TIMEOUT_S
from rl_agent.pool.problem import words_of
from rl_agent.pool.runtime.journal import check_journal
from rl_agent.pool.runtime.runtime import Runtime
from rl_agent.system.files import allow_open_files
from rl_agent.system.owner import sole_owner

log = logging.getLogger(__name__)
STOP_TIMEOUT_S = 0.25


async def serve(
    config: PoolConfig, on_listening: Callable[[str], None], versions: Path, leaving: asyncio.Event
) -> None:
    """Serve until `leaving` is set, with the limit of open files raised; else like `running_manager`."""
    allow_open_files()
    async with running_manager(config, versions) as (url, _):
        on_listening(url)
        await leaving.wait()


@asynccontextmanager
async def running_manager(config: PoolConfig, versions: Path) -> AsyncIterator[tuple[str, Runtime]]:
    """Run a manager while the block runs; yields its URL and its parts.

    Below `versions` a trainer of this host keeps its weight versions. The journal is touched only once it is
    known that this manager has it, and its port, to itself.
    Raises ConfigError if the address cannot be listened on, RetryLater if another manager has the journal,
    StoreError if that cannot be used.
    """
    tls = serving(config.tls_certificate, config.tls_key)
    with ExitStack() as held:
        if config.journal is not None:
            check_journal(config.journal)
            advice = "end that manager first, or give this one a journal of its own"
            held.enter_context(sole_owner(config.journal, f"journal={config.journal}", advice))
        listener = HttpListener(
            config.host,
            config.port,
            login_timeout_s=config.login_timeout_s,
            max_connections=config.max_connections,
            tls=tls,
            error_body=words_of,
        )
        held.enter_context(closing(listener))
        kept = KeptConnections(keepalive_s=ROUTE_KEEPALIVE_S, connect_timeout_s=CONNECT_TIMEOUT_S)
        held.enter_context(closing(kept))
        async with _session() as session:
            runtime = Runtime(config)
            async with _jobs(runtime):
                app = application(config, runtime, session, versions, kept)
                # At the end those that wait for samples are answered, and all others closed.
                async with listener.answering(app, stop_timeout_s=STOP_TIMEOUT_S, at_end=runtime.end):
                    yield listener.url, runtime


def _session() -> aiohttp.ClientSession:
    """Return the HTTP session that reaches the engines."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


@asynccontextmanager
async def _jobs(runtime: Runtime) -> AsyncIterator[None]:
    """Run the pool and the recording of its results, beginning with what the journal contains."""
    async with asyncio.TaskGroup() as jobs:
        ready = asyncio.Event()
        running = [
            jobs.create_task(runtime.pool.run(ready), name="pool"),
            jobs.create_task(runtime.run_jobs(), name="results"),
        ]
        try:
            await ready.wait()
            runtime.restore()
            yield
        finally:
            for job in running:
                job.cancel()


def application(
    config: PoolConfig,
    runtime: Runtime,
    session: aiohttp.ClientSession,
    versions: Path,
    kept: KeptConnections,
) -> web.Application:
    app = web.Application(middlewares=[guard(config, os.environ)])
    app.add_routes(PoolApi(config, runtime, session, versions, kept).routes())
    app.add_routes(OpenAiApi(config, runtime).routes())
    return app
