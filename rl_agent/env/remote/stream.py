"""Frames over a stream socket: four bytes of length, big-endian, and so many bytes of one message.

Who sends more than `MAX_FRAME_BYTES` in one frame is cut off. Nothing waits here: a sender whose reader is
slow has its frames kept up to `MAX_UNSENT_BYTES`; beyond that the connection is given up.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import cast

from rl_agent.env.remote.wire import MAX_FRAME_BYTES

_LENGTH_BYTES = 4
MAX_UNSENT_BYTES = 2 * MAX_FRAME_BYTES


def framed(frame: bytes) -> bytes:
    """Return a frame as it travels."""
    return len(frame).to_bytes(_LENGTH_BYTES, "big") + frame


class FrameStream(asyncio.Protocol):
    """One end of a connection; calls back with every frame, and once when it is closed."""

    def __init__(self, on_frame: Callable[[bytes], None], on_closed: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._received = bytearray()
        self._gathered: list[bytes] = []
        """Frames that leave together at the end of this turn of the event loop."""
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def over(
        cls, connected: socket.socket, on_frame: Callable[[bytes], None], on_closed: Callable[[], None]
    ) -> "FrameStream":
        """Take over a connected socket."""
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(lambda: cls(on_frame, on_closed), sock=connected)
        return stream

    def send(self, frame: bytes) -> None:
        """Send one frame; does nothing once the connection is closed."""
        self._write(framed(frame))

    def send_soon(self, frame: bytes) -> None:
        """Send one frame at the end of this turn of the event loop, in one write with the others of the turn.

        For a loop that nothing blocks: a frame that is gathered is lost with its process.
        """
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._send_gathered)
        self._gathered.append(framed(frame))

    def _send_gathered(self) -> None:
        gathered, self._gathered = b"".join(self._gathered), []
        self._write(gathered)

    def _write(self, content: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(content)
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def release(self) -> socket.socket | None:
        """Give the socket back, for another stream; None if a frame is under way or the connection is closed.

        Frames that nobody has read stay in it. `on_closed` is not called.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return None
        if self._received or self._gathered or transport.get_write_buffer_size():
            return None
        released = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self._on_closed = lambda: None
        transport.abort()
        return released

    # --- called by the event loop ---
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is none by class

    def data_received(self, received: bytes) -> None:
        pending = self._received
        pending += received
        begin = 0
        while len(pending) - begin >= _LENGTH_BYTES:
            end = begin + _LENGTH_BYTES + int.from_bytes(pending[begin : begin + _LENGTH_BYTES], "big")
            if end - begin - _LENGTH_BYTES > MAX_FRAME_BYTES:
                self.abort()
                return
            if len(pending) < end:
                break
            self._on_frame(bytes(pending[begin + _LENGTH_BYTES : end]))
            begin = end
        del pending[:begin]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_closed()
