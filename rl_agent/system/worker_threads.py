"""The event loop's threads, which a hung environment cannot use up.

`asyncio.to_thread` runs in the loop's default executor. Python's own has a handful of threads, and a call
that never returns keeps one for ever, also when the process wants to exit. Here threads are daemons. One
whose waiter gave its call up (a step timeout) is named in the log, is no longer counted, and does not hold up
the exit.

    waiting ─► running ─► ended: its thread takes another call
                  └─► abandoned (the caller stopped waiting): the next call begins in another thread
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as futures_wait
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

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
        self._running: set[_Call] = set()
        """Calls that were begun and not abandoned."""
        self._idle: list[_NextCall] = []
        """A queue of each thread that waits for a call."""
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
            running = set(self._running)
            self._end_idle()
        futures_wait(running, SHUTDOWN_TIMEOUT_S if wait else 0.0)

    def _begin_next(self) -> None:
        """Begin as many calls as may run; the caller has the lock."""
        while self._waiting and len(self._running) < self._size:
            call = self._waiting.popleft()
            self._running.add(call)
            if self._idle:
                following = self._idle.pop()
            else:
                following = _NextCall()
                threading.Thread(target=self._run, args=(following,), name=self.name, daemon=True).start()
            following.put(call)

    def _run(self, following: "_NextCall") -> None:
        """Run calls in this thread until one is abandoned, or no more will come."""
        while (call := following.get()) is not None:
            call.run()
            if not self.leave(call, following):
                return
            del call  # while the thread waits it would keep what the call was given and returned

    def leave(self, call: "_Call", following: "_NextCall | None" = None) -> bool:
        """Give the place of a call, and its thread if that is free, to the next one; False if it had none."""
        with self._lock:
            had_place = call in self._running
            self._running.discard(call)
            if had_place and following is not None:
                self._idle.append(following)
            self._begin_next()
            if self._closed:
                self._end_idle()
        return had_place

    def _end_idle(self) -> None:
        """End the threads that wait for a call; the caller has the lock."""
        while self._idle:
            self._idle.pop().put(None)


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

    def cancel(self) -> bool:
        if super().cancel():
            return True
        if not self.done() and self._pool.leave(self):
            ran_s = time.monotonic() - self._since
            log.warning("thread %s left behind: its call has run for %.0f s", self._pool.name, ran_s)
        return False


_NextCall: TypeAlias = SimpleQueue[_Call | None]
