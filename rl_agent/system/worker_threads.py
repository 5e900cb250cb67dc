"""The event loop's threads, which a hung environment cannot use up.

`asyncio.to_thread` runs in the loop's default executor. Python's own has a handful of threads, and a call
that never returns keeps one for ever, also when the process wants to exit. Here each call has a daemon
thread of its own. One that its waiter gave up (a step timeout) is named in the log, is no longer counted, and
does not hold up the exit.

    waiting ─► running ─► ended
                  └─► abandoned (the caller stopped waiting): the next call begins
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

log = logging.getLogger(__name__)
SHUTDOWN_TIMEOUT_S = 2.0

T = TypeVar("T")


class WorkerThreads(ThreadPoolExecutor):
    """The executor for `loop.set_default_executor`; at most `size` calls run, the next ones wait in order."""

    # asyncio insists on the subclass; none of ThreadPoolExecutor's own machinery is used.

    def __init__(self, size: int, *, name: str = "environment") -> None:
        super().__init__(max_workers=1)
        self._size = size
        self.name = name
        self._lock = threading.Lock()
        self._waiting: deque[_Call] = deque()
        self._running: dict[_Call, threading.Thread] = {}
        """Calls that were begun and not abandoned."""
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a call in a thread. Raises RuntimeError after shutdown."""
        call = _Call(self, lambda: fn(*args, **kwargs))
        with self._lock:
            if self._closed:
                raise RuntimeError("the rollout is shutting down and takes no more calls")
            self._waiting.append(call)
            self._begin_next()
        return call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let running calls end for a moment, then leave them to the exit of the process."""
        with self._lock:
            self._closed = True
            threads = list(self._running.values())
        deadline = time.monotonic() + (SHUTDOWN_TIMEOUT_S if wait else 0.0)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _begin_next(self) -> None:
        """Begin as many calls as may run; the caller has the lock."""
        while self._waiting and len(self._running) < self._size:
            call = self._waiting.popleft()
            self._running[call] = threading.Thread(target=call.run, name=self.name, daemon=True)
            self._running[call].start()

    def leave(self, call: "_Call") -> bool:
        """Give the place of a call to the next one; False if it had none."""
        with self._lock:
            had_place = self._running.pop(call, None) is not None
            self._begin_next()
        return had_place


class _Call(Future[Any]):
    """A call and its future in one. Cancelling it while it runs abandons its thread."""

    def __init__(self, pool: WorkerThreads, work: Callable[[], Any]) -> None:
        super().__init__()
        self._pool = pool
        self._work = work
        self._since = time.monotonic()

    def run(self) -> None:
        self._since = time.monotonic()
        if self.set_running_or_notify_cancel():
            try:
                result = self._work()
            except StopIteration as error:  # no asyncio.Future can have it: whoever waits would wait for ever
                raised = RuntimeError("raised StopIteration").with_traceback(error.__traceback__)
                self.set_exception(raised)
            except BaseException as error:  # it belongs to whoever waits, whatever it is
                self.set_exception(error)
            else:
                self.set_result(result)
        self._pool.leave(self)

    def cancel(self) -> bool:
        if super().cancel():
            return True
        if not self.done() and self._pool.leave(self):
            ran_s = time.monotonic() - self._since
            log.warning("thread %s left behind: its call has run for %.0f s", self._pool.name, ran_s)
        return False
