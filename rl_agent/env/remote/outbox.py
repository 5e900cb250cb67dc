"""Frames on their way to a peer that reads them when it likes; bounded in bytes."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

MAX_WAITING_BYTES = 2**28


class Outbox:
    """`put` never waits; `run` sends. With too much waiting the connection is given up."""

    def __init__(self, give_up: Callable[[], object]) -> None:
        self._give_up = give_up
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._has_some = asyncio.Event()

    def put(self, frame: bytes) -> None:
        self._waiting.append(frame)
        self._size += len(frame)
        self._has_some.set()
        if self._size > MAX_WAITING_BYTES:
            self._give_up()

    async def run(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send what is put, until cancelled. Raises what `send` raises."""
        while True:
            await self._has_some.wait()
            while self._waiting:
                frame = self._waiting.popleft()
                self._size -= len(frame)
                await send(frame)
            self._has_some.clear()
