"""Wakes threads and asyncio tasks that wait for a change."""

import asyncio
import threading


class Notifier:
    """A counter of changes; whoever waits with a count that it read before misses no change in between."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._listeners: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @property
    def count(self) -> int:
        return self._count

    def notify(self) -> None:
        """Wake everybody who waits."""
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
        """Return once the count differs from `seen`, or after `timeout_s`."""
        with self._condition:
            self._condition.wait_for(lambda: self._count != seen, timeout_s)

    async def wait_async(self, seen: int, timeout_s: float) -> None:
        """Do the same as `wait` without blocking the event loop."""
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
