"""Sends requests through a worker's tunnel to an engine that has no address.

The worker opens one websocket to the manager and keeps it; requests to its engine travel over it. If it
breaks, all requests on it break (and move on); the worker may connect again while its lease holds.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from aiohttp import WSMsgType, web

from rl_agent.pool.engines import tunnel_frames
from rl_agent.pool.engines.answers import StreamError
from rl_agent.pool.engines.link import EngineAnswer

log = logging.getLogger(__name__)
CONNECT_WAIT_S = 5.0
_Event = tunnel_frames.ToManager | None


class TunnelTransport:
    """A transport over the connection that the worker holds at the time."""

    def __init__(self) -> None:
        self._socket: web.WebSocketResponse | None = None
        self._connected = asyncio.Event()
        self._streams: dict[int, asyncio.Queue[tuple[_Event, bytes]]] = {}
        self._numbers = count(1)

    @asynccontextmanager
    async def open(self, method: str, path: str, body: bytes | None = None) -> AsyncIterator[EngineAnswer]:
        socket = await self._connection()
        number = next(self._numbers)
        stream = self._streams[number] = asyncio.Queue()
        try:
            frame = tunnel_frames.Open(id=number, method="POST" if method == "POST" else "GET", path=path)
            await _send(socket, tunnel_frames.pack(frame, body or b""))
            del body  # it may hold images
            head = await _next(stream)
            if not isinstance(head[0], tunnel_frames.Head):
                raise StreamError("the worker sent no status")
            yield TunnelAnswer(head[0].status, stream)
        finally:
            del self._streams[number]
            if self._socket is socket and not socket.closed:
                await _send(socket, tunnel_frames.pack(tunnel_frames.Close(id=number)))

    async def _connection(self) -> web.WebSocketResponse:
        try:
            async with asyncio.timeout(CONNECT_WAIT_S):
                await self._connected.wait()
        except TimeoutError:
            raise StreamError("its worker is not connected") from None
        assert self._socket is not None
        return self._socket

    async def serve(self, socket: web.WebSocketResponse) -> None:
        """Carry frames until the connection ends; a newer one of the same worker takes over."""
        if self._socket is not None:
            await self._socket.close()
        self._socket = socket
        self._connected.set()
        try:
            async for message in socket:
                if message.type is not WSMsgType.BINARY or not self._receive(message.data):
                    break
        finally:
            if self._socket is socket:
                self._socket = None
                self._connected.clear()
                for stream in self._streams.values():
                    stream.put_nowait((None, b""))

    def _receive(self, message: bytes) -> bool:
        """Deliver one frame; False if it is none, and the connection cannot be used any further."""
        try:
            frame, payload = tunnel_frames.read_for_manager(message)
        except ValueError:
            log.warning("a worker sent what is not a frame; its connection is closed")
            return False
        stream = self._streams.get(frame.id)
        if stream is not None:
            stream.put_nowait((frame, payload))
        return True


class TunnelAnswer:
    def __init__(self, status: int, stream: "asyncio.Queue[tuple[_Event, bytes]]") -> None:
        self.status = status
        self._stream = stream

    async def read(self) -> bytes:
        """Return the next bytes; empty at the end."""
        payload = b""
        while not payload:
            frame, payload = await _next(self._stream)
            if isinstance(frame, tunnel_frames.End):
                return b""
        return payload


async def _next(stream: "asyncio.Queue[tuple[_Event, bytes]]") -> tuple[tunnel_frames.ToManager, bytes]:
    """Raises StreamError if the exchange is over without an end."""
    frame, payload = await stream.get()
    if frame is None:
        raise StreamError("the worker's connection broke")
    if isinstance(frame, tunnel_frames.Error):
        raise StreamError(frame.words)
    return frame, payload


async def _send(socket: web.WebSocketResponse, message: bytes) -> None:
    try:
        await socket.send_bytes(message)
    except (ConnectionError, RuntimeError) as error:
        raise StreamError(f"the worker's connection broke: {error}") from error
