"""Accepts connections at a service's port, as many as it may have open, and closes idle ones.

    a place is free ─► accept ─► TLS, if any ─► first request in `login_timeout_s` ─► stays while it is used
       └── none: the next connection waits in the kernel's queue until another one has closed

So many requests at once are slowed down, and none is cut off. A connection that has been idle for `IDLE_S` is
closed; a slow answer to it is not idle.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from rl_agent.errors import ConfigError, MachineError

log = logging.getLogger(__name__)
BACKLOG = 16384
"""Connections that wait for a place; the kernel allows net.core.somaxconn of them at most."""
IDLE_S = 75.0
"""Longer than clients keep an idle connection for the next request (aiohttp 15 s, httpx 5 s, nginx 60 s)."""
LINGER_S = 2.0
"""Seconds for which the rest of a refused body is read, so that the client sees the answer."""
ACCEPT_RETRY_S = 0.5
_OF_CLIENTS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)


ErrorBody = Callable[[int, str], str]
"""Makes the JSON body of an error from its status and one line."""


class Connection(web.RequestHandler):
    """An HTTP connection, closed if no request has come within the login timeout."""

    __slots__ = ("_error_body", "_login", "_on_close")

    def __init__(
        self,
        server: web.Server,
        login_timeout_s: float,
        on_close: Callable[[], object],
        error_body: ErrorBody,
    ) -> None:
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {"access_log": None, "logger": log}
        # Bodies stay as they were sent: inflating one would be work before the token is looked at.
        options |= {"auto_decompress": False, "keepalive_timeout": IDLE_S, "lingering_time": LINGER_S}
        super().__init__(server, loop=loop, **options)
        self._on_close = on_close
        self._error_body = error_body
        self._login = loop.call_later(login_timeout_s, self.abort)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages:  # its handler may wait for a busy loop, but the sender has done its part
            self._login.cancel()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._login.cancel()
        self._on_close()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a client's own mistake with one line, and log none."""
        if not isinstance(exc, _OF_CLIENTS):
            return super().handle_error(request, status, exc, message)
        words = " ".join((message or str(exc) or "this is not HTTP").split())
        log.debug("%s: %s", request.remote, words)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer has been sent")
        answer = web.Response(status=400, text=self._error_body(400, words), content_type="application/json")
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **kw: Any) -> None:
        if not isinstance(kw.get("exc_info"), _OF_CLIENTS):
            super().log_exception(*args, **kw)


class HttpListener:
    """Listens from the beginning, so that a port that is taken is known; `run` lets connections in."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        login_timeout_s: float,
        max_connections: int,
        tls: ssl.SSLContext | None,
        error_body: ErrorBody,
    ) -> None:
        """Raises ConfigError if the address cannot be listened on."""
        self._login_timeout_s = login_timeout_s
        self._tls = tls
        self._error_body = error_body
        self._sockets = _listen(host, port)
        self._places = asyncio.Semaphore(max_connections)

    @property
    def url(self) -> str:
        host, port = self._sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self._tls else 'http'}://{shown}:{port}"

    def close(self) -> None:
        for listening in self._sockets:
            listening.close()

    @asynccontextmanager
    async def answering(
        self, app: web.Application, *, stop_timeout_s: float, at_end: Callable[[], None] = lambda: None
    ) -> AsyncIterator[None]:
        """Let an application answer while the block runs; then close, and cut off what goes on for too long.

        `at_end` is called between the two.
        """
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=stop_timeout_s)
        await runner.setup()
        assert runner.server is not None
        try:
            async with asyncio.TaskGroup() as jobs:
                accepting = jobs.create_task(self.run(runner.server), name="listener")
                try:
                    yield
                finally:
                    accepting.cancel()
        finally:
            self.close()
            at_end()
            await runner.cleanup()

    async def run(self, server: web.Server) -> None:
        """Accept until cancelled."""
        async with asyncio.TaskGroup() as jobs:
            for listening in self._sockets:
                jobs.create_task(self._accept(listening, server, jobs), name="accept")

    async def _accept(self, listening: socket.socket, server: web.Server, jobs: asyncio.TaskGroup) -> None:
        while True:
            await self._places.acquire()
            try:
                arrived, _ = await asyncio.get_running_loop().sock_accept(listening)
            except OSError as error:
                self._places.release()
                if not isinstance(error, ConnectionError):  # else who came is gone again
                    log.warning("no connection can be accepted now: %s", error.strerror)
                    await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            jobs.create_task(self._admit(arrived, server), name="admit")

    async def _admit(self, arrived: socket.socket, server: web.Server) -> None:
        """Make a connection of what was accepted, or close it if that fails: TLS begins with a handshake."""
        place = ExitStack()  # given back once, whoever closes the connection
        place.callback(self._places.release)

        def make() -> Connection:
            return Connection(server, self._login_timeout_s, place.close, self._error_body)

        try:
            async with asyncio.timeout(self._login_timeout_s):
                await asyncio.get_running_loop().connect_accepted_socket(make, arrived, ssl=self._tls)
        except BaseException as error:
            arrived.close()
            place.close()
            if not isinstance(error, OSError):
                raise
            log.debug("a connection was not made: %s", error)


def _listen(host: str, port: int) -> list[socket.socket]:
    """Listen at every address of a name, all at the same port. Raises ConfigError."""
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, where in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            at = (where[0], sockets[0].getsockname()[1] if sockets else port)
            try:
                sockets.append(socket.create_server(at, family=family, backlog=BACKLOG))
            except OSError as error:
                if not sockets or error.errno != errno.EADDRNOTAVAIL:
                    raise
            else:
                sockets[-1].setblocking(False)
    except OSError as error:
        for listener in sockets:
            listener.close()
        if error.errno == errno.EADDRINUSE:
            raise MachineError(
                f"host={host} port={port} is in use; choose another port, or 0 for any"
            ) from error
        raise ConfigError(f"host={host} port={port} cannot be listened on: {error.strerror}") from error
    return sockets
