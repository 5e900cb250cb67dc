"""Wakes everybody who waits for something to have changed: threads, and jobs of an event loop."""

import asyncio
import threading


class Bell:
    """Waiting on a count that was read before cannot miss a ring in between."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._listeners: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @property
    def count(self) -> int:
        return self._count

    def ring(self) -> None:
        with self._condition:
            self._count += 1
            self._condition.notify_all()
            listeners = list(self._listeners)
        for loop, event in listeners:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # that loop is closed by now
                continue

    def wait(self, seen: int, timeout_s: float) -> None:
        """Return once the count is past `seen`, or after `timeout_s`."""
        with self._condition:
            self._condition.wait_for(lambda: self._count != seen, timeout_s)

    async def wait_async(self, seen: int, timeout_s: float) -> None:
        event = asyncio.Event()
        listener = (asyncio.get_running_loop(), event)
        with self._condition:
            if self._count != seen:
                return
            self._listeners.add(listener)
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return
        finally:
            with self._condition:
                self._listeners.discard(listener)
