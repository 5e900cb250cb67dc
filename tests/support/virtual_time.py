"""An event loop in which waiting takes no time: its clock jumps to the next timer. No files, no sockets."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Idle(selectors.SelectSelector):
    """A selector that passes the time instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing is left that could happen")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._idle = _Idle()
        super().__init__(self._idle)

    def time(self) -> float:
        return self._idle.now


def run_virtually(job: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, in virtual time from 0 on."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(job)
