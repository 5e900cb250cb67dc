"""Connections that are kept for the next request, for those who send thousands a second.

An aiohttp session takes 140 us of processor time for a short request, and much of that for what none of these
has: TLS, cookies, redirects, proxies, bodies that are made as they are sent. aiohttp reads the answers here,
too, by the part of it that its sessions read them by.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError
from yarl import URL


class HttpAnswer:
    """The status of an answer, and what it holds as it arrives."""

    def __init__(self, status: int, content: aiohttp.StreamReader) -> None:
        self.status = status
        self.content = content

    async def read(self) -> bytes:
        return await self.content.readany()


def head_of(method: str, url: URL, headers: Mapping[str, str]) -> bytes:
    """Return the first line of a request and its headers. Raises ValueError for one with a line break."""
    for name, value in headers.items():
        if "\n" in value or "\r" in value:
            raise ValueError(f"the value of the header {name} has a line break")
    lines = [f"{method} {url.raw_path_qs} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n"]
    return "".join(lines + [f"{name}: {value}\r\n" for name, value in headers.items()]).encode()


class KeptConnections:
    """Idle connections by the origin that they lead to."""

    def __init__(self, *, keepalive_s: float, connect_timeout_s: float) -> None:
        self._keepalive_s = keepalive_s
        self._connect_timeout_s = connect_timeout_s
        self._idle: defaultdict[URL, list[tuple[float, ResponseHandler]]] = defaultdict(list)
        """Each with the time since which it is idle, the newest last."""
        self._sweep: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._close_idle(since=float("inf"))

    @asynccontextmanager
    async def open(self, origin: URL, head: bytes, body: bytes) -> AsyncIterator[HttpAnswer]:
        """Send a request and yield its answer; one that is not read to its end costs the connection.

        `head` is that of `head_of`, without the length of the body. Raises ConnectionError.
        """
        connection: ResponseHandler | None = None
        try:
            connection = self._take(origin)
            if connection is None:  # one that is open is a queue, and false while that is empty
                connection = await self._connect(origin)
            connection.set_response_params(read_until_eof=True, auto_decompress=False)
            transport = cast(asyncio.WriteTransport, connection.transport)  # uvloop's is none by class
            transport.write(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
            del body  # it may hold images
            message, content = await connection.read()
            yield HttpAnswer(message.code, content)
            if not message.should_close and not connection.should_close:
                self._keep(origin, connection)
                connection = None
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        finally:
            if connection is not None:
                connection.close()

    def _take(self, origin: URL) -> ResponseHandler | None:
        idle, oldest = self._idle[origin], asyncio.get_running_loop().time() - self._keepalive_s
        while idle:
            since, connection = idle.pop()
            if since > oldest and connection.is_connected() and not connection.should_close:
                return connection
            connection.close()
        return None

    async def _connect(self, origin: URL) -> ResponseHandler:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: ResponseHandler(loop), origin.host or "", origin.port or 0
                )
        except TimeoutError:
            raise TimeoutError(f"no connection to {origin} within {self._connect_timeout_s:g} s") from None
        return connection

    def _keep(self, origin: URL, connection: ResponseHandler) -> None:
        loop = asyncio.get_running_loop()
        self._idle[origin].append((loop.time(), connection))
        if self._sweep is None:
            self._sweep = loop.call_later(self._keepalive_s, self._close_old)

    def _close_old(self) -> None:
        loop = asyncio.get_running_loop()
        self._close_idle(since=loop.time() - self._keepalive_s)
        self._sweep = loop.call_later(self._keepalive_s, self._close_old) if self._idle else None

    def _close_idle(self, since: float) -> None:
        """Close the connections that have been idle since then, and forget those that are closed."""
        for origin, idle in list(self._idle.items()):
            for began, connection in idle:
                if began <= since:
                    connection.close()
            self._idle[origin] = [entry for entry in idle if entry[1].is_connected()]
            if not self._idle[origin]:
                del self._idle[origin]
