"""What did not work and is left alone for a while, then tried again."""

import threading
import time
from collections.abc import Callable

GIVEN_UP_S = 300.0


class GivenUp:
    """Names. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        with self._lock:
            return self._clock() < self._until.get(name, 0.0)

    def add(self, name: str) -> None:
        with self._lock:
            self._until[name] = self._clock() + GIVEN_UP_S

    def clear(self) -> None:
        with self._lock:
            self._until.clear()
