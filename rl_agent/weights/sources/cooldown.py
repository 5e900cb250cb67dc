"""Remembers peers that failed recently; they are skipped until their cooldown ends."""

import threading
import time
from collections.abc import Callable

COOLDOWN_S = 300.0


class Cooldown:
    """Names of peers that are skipped for `COOLDOWN_S`. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        with self._lock:
            return self._clock() < self._until.get(name, 0.0)

    def add(self, name: str) -> None:
        with self._lock:
            self._until[name] = self._clock() + COOLDOWN_S

    def clear(self) -> None:
        with self._lock:
            self._until.clear()
