"""The environment servers of a rollout: episodes go to the one with the greatest share of free places.

None is lost with a server: its episodes lose an attempt, and the next goes to another server. Where none has
answered for `wait_s` the rollout ends as one that a resume goes on with.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp

from rl_agent.env.remote.instance import Place, RemoteInstance
from rl_agent.env.remote.placement import freest
from rl_agent.env.remote.server_link import FULL_PAUSE_S, LinkSettings, ServerConnection, ServerLink
from rl_agent.env.remote.spool import Spool
from rl_agent.errors import RetryLater, deliberate

_MOST_NAMED = 3


class ServerPool:
    """Places for instances on servers; opened by `open_servers`."""

    def __init__(self, wait_s: float, make_timeout_s: float) -> None:
        self.make_timeout_s = make_timeout_s
        self.links: list[ServerLink] = []
        self._wait_s = wait_s
        self._changed = asyncio.Event()
        self._numbers = itertools.count(1)
        self._last_open = time.monotonic()

    def create(self, kind: str, crashes: int = 0) -> RemoteInstance:
        """Make an instance that takes a place when it is reset."""
        return RemoteInstance(self, kind, crashes)

    def next_number(self) -> int:
        return next(self._numbers)

    def note_change(self) -> None:
        self._changed.set()

    def is_full(self, place: Place) -> None:
        """Others have taken what seemed free: leave the server alone for a moment."""
        if isinstance(place, ServerConnection):
            place.not_before = time.monotonic() + FULL_PAUSE_S

    async def take(self, instance: int, crashes: int) -> Place:
        """Wait for a place. Raises RetryLater if no server has answered for too long."""
        while True:
            now = time.monotonic()
            connected = [link.connection for link in self.links if link.connection is not None]
            if connected:
                self._last_open = now
            elif now - self._last_open > self._wait_s:
                raise self._nobody(now - self._last_open)
            open_ones = {
                connection.caller.name: connection
                for connection in connected
                if connection.is_open and connection.not_before <= now
            }
            name = freest((name, len(server.instances), server.places) for name, server in open_ones.items())
            if name is not None:
                open_ones[name].instances.add(instance)
                return open_ones[name]
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(FULL_PAUSE_S, self._wait_s)):
                    await self._changed.wait()

    def _nobody(self, waited_s: float) -> RetryLater:
        named = "; ".join(f"{link.url}: {link.problem}" for link in self.links[:_MOST_NAMED])
        more = f" (and {len(self.links) - _MOST_NAMED} more)" if len(self.links) > _MOST_NAMED else ""
        return RetryLater(f"env_config.servers: none has answered for {waited_s:.0f} s: {named}{more}")


@asynccontextmanager
async def open_servers(
    urls: tuple[str, ...], settings: LinkSettings, *, wait_s: float, spool_bytes: int
) -> AsyncIterator[ServerPool]:
    """Give the servers, with connections that are kept while the block runs."""
    pool, spool = ServerPool(wait_s, settings.make_timeout_s), Spool(spool_bytes)
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
            asyncio.TaskGroup() as jobs,
        ):
            pool.links = [ServerLink(url, settings, session, spool, pool.note_change) for url in urls]
            running = [jobs.create_task(link.run(), name=link.url) for link in pool.links]
            try:
                yield pool
            finally:
                for job in running:
                    job.cancel()
    except BaseExceptionGroup as group:
        raise deliberate(group) from None
    finally:
        spool.close()
