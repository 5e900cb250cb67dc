"""The connection to one environment server: made, kept, and made again after it was lost.

status asked ─► WebSocket ─► takes episodes ─► lost (closed, silent, lying): they lose an attempt
     ▲                          └─ draining: those that run may end                  │
     └──────────────────────── after a pause that grows ◄──────────────────────────────┘
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import msgspec

from rl_agent.env.remote import server_api
from rl_agent.env.remote.caller import Caller
from rl_agent.env.remote.outbox import Outbox
from rl_agent.env.remote.server_api import read_status
from rl_agent.env.remote.spool import Spool
from rl_agent.env.remote.wire import MAX_FRAME_BYTES, NotMade, Seen, WireError
from rl_agent.errors import EnvironmentLost, EnvironmentUnavailable, in_one_line
from rl_agent.system.off_loop import off_loop

log = logging.getLogger(__name__)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
FULL_PAUSE_S = 0.5
"""A server that was full is not asked for a place for this long."""
UNUSABLE_PAUSE_S = 60.0
_MAX_STATUS_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class LinkSettings:
    token: str | None
    tls: ssl.SSLContext | None
    timeout_s: float
    """The longest silence of a server before it counts as lost."""
    make_timeout_s: float = 300.0
    """The longest time that a server may take to make an instance, its wait for a worker included."""


class ServerConnection:
    """One connection to a server; a `Place` of the instances that were made over it."""

    def __init__(self, caller: Caller, places: int, spool: Spool, on_change: Callable[[], None]) -> None:
        self.caller = caller
        self.places = places
        self.instances: set[int] = set()
        self.not_before = 0.0
        """The time from which the server may be asked for a place again."""
        self._spool = spool
        self._on_change = on_change

    @property
    def is_open(self) -> bool:
        return self.caller.lost is None and not self.caller.is_draining

    async def images(self, instance: int, seen: Seen) -> tuple[str, ...]:
        if seen.paths:
            error = WireError("file paths of another machine")
            self.caller.lose(error)
            raise error
        return await off_loop(sum(map(len, seen.contents)), self._spool.keep, instance, seen.contents)

    def loss(self, instance: int, error: EnvironmentLost | EnvironmentUnavailable) -> Exception:
        if not isinstance(error, EnvironmentUnavailable | NotMade):
            return error
        log.warning("%s: %s", self.caller.name, error)
        self.not_before = time.monotonic() + UNUSABLE_PAUSE_S
        return EnvironmentLost(f"{self.caller.name}: {error}")

    def leave(self, instance: int, *, is_closed: bool) -> None:
        self.instances.discard(instance)
        self._spool.drop(instance)
        self._on_change()


class ServerLink:
    """One server of `env_config.servers`, connected or not."""

    def __init__(
        self,
        url: str,
        settings: LinkSettings,
        session: aiohttp.ClientSession,
        spool: Spool,
        on_change: Callable[[], None],
    ) -> None:
        self.url = url
        self.connection: ServerConnection | None = None
        self.problem = "it has not answered yet"
        """The reason that there is no connection."""
        self._settings = settings
        self._session = session
        self._spool = spool
        self._on_change = on_change

    async def run(self) -> None:
        """Keep the connection, until cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            try:
                await self._connect()
            except (
                OSError,
                aiohttp.ClientError,
                TimeoutError,
                msgspec.DecodeError,
                EnvironmentLost,
            ) as error:
                self.problem = in_one_line(error)
                log.warning("environment server %s: %s", self.url, self.problem)
            if time.monotonic() - began > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _connect(self) -> None:
        """Connect and stay connected; returns or raises when that is over."""
        headers = {"Authorization": f"Bearer {self._settings.token}"} if self._settings.token else {}
        tls: ssl.SSLContext | bool = self._settings.tls or True
        limit = aiohttp.ClientTimeout(total=self._settings.timeout_s)
        async with self._session.get(
            self.url + server_api.STATUS, headers=headers, ssl=tls, timeout=limit
        ) as answer:
            if answer.status != 200:
                raise EnvironmentLost(f"it answers {answer.status}")
            status = read_status(await _whole(answer))
        async with asyncio.timeout(self._settings.timeout_s):
            socket = await self._session.ws_connect(
                self.url + server_api.INSTANCES,
                headers=headers,
                ssl=tls,
                max_msg_size=MAX_FRAME_BYTES,
                timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
            )
        async with socket:
            await self._stay(socket, status.places)

    async def _stay(self, socket: aiohttp.ClientWebSocketResponse, places: int) -> None:
        lost = asyncio.Event()
        outbox = Outbox(lambda: caller.lose(EnvironmentLost("it reads nothing")))
        caller = Caller(f"environment server {self.url}", outbox.put)

        def changed() -> None:
            if caller.lost is not None:
                lost.set()
            self._on_change()

        caller.on_change = changed
        self.connection = ServerConnection(caller, places, self._spool, self._on_change)
        self._on_change()
        log.info("environment server %s: connected, %d places", self.url, places)
        try:
            async with asyncio.TaskGroup() as jobs:
                running = [
                    jobs.create_task(_read(socket, caller), name="read"),
                    jobs.create_task(_write(outbox, socket, caller), name="write"),
                    jobs.create_task(self._watch(caller), name="watch"),
                ]
                await lost.wait()
                for job in running:
                    job.cancel()
        finally:
            caller.lose(EnvironmentLost("its connection was closed"))
            assert caller.lost is not None
            self.problem = str(caller.lost)
            self.connection = None
            self._on_change()
        raise caller.lost

    async def _watch(self, caller: Caller) -> None:
        interval = min(1.0, self._settings.timeout_s / 4)
        while True:
            before = time.monotonic()
            caller.ping()
            await asyncio.sleep(interval)
            if time.monotonic() - before > 3 * interval:  # this process itself was not running
                caller.excuse()
            elif caller.silent_s > self._settings.timeout_s:
                caller.lose(EnvironmentLost(f"it has been silent for {caller.silent_s:.0f} s"))


async def _read(socket: aiohttp.ClientWebSocketResponse, caller: Caller) -> None:
    while True:
        received = await socket.receive()
        if received.type is not aiohttp.WSMsgType.BINARY:
            caller.lose(EnvironmentLost("it has closed the connection"))
            return
        caller.receive(received.data)


async def _write(outbox: Outbox, socket: aiohttp.ClientWebSocketResponse, caller: Caller) -> None:
    try:
        await outbox.run(socket.send_bytes)
    except (ConnectionError, aiohttp.ClientError) as error:
        caller.lose(EnvironmentLost(in_one_line(error)))


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    """Return the body, whose end may arrive after its beginning. Raises EnvironmentLost if it is long."""
    content = bytearray()
    async for part in answer.content.iter_any():
        content += part
        if len(content) > _MAX_STATUS_BYTES:
            raise EnvironmentLost(f"its status is longer than {_MAX_STATUS_BYTES:,} bytes")
    return bytes(content)
