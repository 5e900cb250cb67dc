"""Caps the bytes per second that leave a host, over all its connections."""

import threading
import time
from collections.abc import Callable

_BURST_S = 0.05


class Throttle:
    """A leaky bucket: whoever sends takes from it first and waits as long as it says. Thread-safe."""

    def __init__(self, bytes_per_s: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = clock()
        """Time at which all that was taken so far has left."""

    @property
    def is_on(self) -> bool:
        return self._rate is not None

    def take(self, size_bytes: int) -> float:
        """Count `size_bytes` as sent; returns the seconds to wait before sending them."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = self._clock()
            start = max(self._free_at, now - _BURST_S)
            self._free_at = start + size_bytes / self._rate
            return max(0.0, start - now)
