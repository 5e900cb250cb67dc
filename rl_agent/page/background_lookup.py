"""Looks something slow up in a thread of its own, so that no view of the page waits for it.

asked ─► the last result at once; if it is old, one look begins in a thread of its own
"""

import time
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundLookup(Generic[T]):
    """Looks at most every `every_s`, while somebody asks; `look` raises nothing."""

    def __init__(
        self,
        name: str,
        look: Callable[[], T],
        first: T,
        every_s: float,
        forget_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`first` is the result before there is one, and again `forget_s` after the newest was found."""
        self._name = name
        self._look = look
        self._first = first
        self._every_s = every_s
        self._forget_s = forget_s
        self._clock = clock
        self._lock = Lock()
        self._newest = first
        self._is_looking = False
        self._next_look = float("-inf")
        self._first_at: float | None = None
        self._found_at = float("inf")
        self._has_looked = Event()

    def newest(self, wait_s: float = 0.0) -> T:
        """Return the newest result; the first look is waited for until it has taken so long."""
        with self._lock:
            now = self._clock()
            if now - self._found_at > self._forget_s:
                self._newest, self._found_at, self._first_at = self._first, float("inf"), None
                self._has_looked.clear()
            is_due = not self._is_looking and now >= self._next_look
            self._is_looking |= is_due
            self._first_at = now if self._first_at is None else self._first_at
            wait_s = max(0.0, self._first_at + wait_s - now)
        if is_due:
            Thread(target=self._run, name=self._name, daemon=True).start()
        self._has_looked.wait(wait_s)
        return self._newest

    def _run(self) -> None:
        newest = self._look()
        with self._lock:
            self._newest, self._found_at = newest, self._clock()
            self._is_looking = False
            self._next_look = self._found_at + self._every_s
            self._has_looked.set()
