"""The event loop's threads, which a hung environment cannot use up.

`asyncio.to_thread` runs in the loop's default executor. Python's own has a handful of threads, and a call
that never returns keeps one for ever, also when the process wants to exit. Here a call that its waiter gave
up (a step timeout) has its thread abandoned: it is named in the log, no longer counted, and, being a daemon,
does not hold up the exit. A thread that comes back after all ends quietly.

    idle ⇄ calling ──► abandoned (the caller stopped waiting) ──► ended, if the call ever returns
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

log = logging.getLogger(__name__)

MAX_ABANDONED = 256
"""The number of hung threads beyond which no further call is taken: something is wrong beyond one
environment."""
SHUTDOWN_TIMEOUT_S = 2.0

T = TypeVar("T")


class WorkerThreads(ThreadPoolExecutor):
    """The executor for `loop.set_default_executor`; at most `size` calls run, the next ones wait in order."""

    # asyncio insists on the subclass; none of ThreadPoolExecutor's own machinery is used.

    def __init__(self, size: int, *, name: str = "environment") -> None:
        super().__init__(max_workers=1, thread_name_prefix=name)
        self._size = size
        self._name = name
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads: set[threading.Thread] = set()
        """Started and not abandoned."""
        self._idle = 0
        self._queued = 0
        self._started = 0
        self._closed = False
        self.abandoned = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a call in a thread. Raises RuntimeError after shutdown, or when too many threads hang."""
        call = _Call(self, fn, args, kwargs)
        with self._lock:
            if self._closed:
                raise RuntimeError("the rollout is shutting down and takes no more calls")
            if self.abandoned >= MAX_ABANDONED:
                raise RuntimeError(f"{self.abandoned} environment threads hang; no more are started")
            self._queued += 1
            if self._queued > self._idle and len(self._threads) < self._size:
                self._start_thread()
        self._calls.put(call)
        return call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let running calls end for a moment, then leave them to the exit of the process."""
        with self._lock:
            self._closed = True
            threads = list(self._threads)
        for _ in threads:
            self._calls.put(None)
        deadline = time.monotonic() + (SHUTDOWN_TIMEOUT_S if wait else 0.0)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start_thread(self) -> None:
        self._started += 1
        thread = threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True)
        self._threads.add(thread)
        self._idle += 1
        thread.start()

    def _work(self) -> None:
        this = threading.current_thread()
        while (call := self._calls.get()) is not None:
            with self._lock:
                self._queued -= 1
                self._idle -= 1
            call.run(this)
            del call  # or the last result would live until the next call
            with self._lock:
                if this not in self._threads:
                    self.abandoned -= 1
                    return
                self._idle += 1
        with self._lock:
            self._threads.discard(this)

    def _abandon(self, thread: threading.Thread, since: float) -> None:
        with self._lock:
            if thread not in self._threads:
                return
            self._threads.discard(thread)
            self.abandoned += 1
            if self._queued > self._idle:
                self._start_thread()
        log.warning(
            "thread %s left behind: its call has run for %.0f s", thread.name, time.monotonic() - since
        )


class _Call(Future[Any]):
    """A call and its future in one. Cancelling it while it runs abandons its thread."""

    def __init__(
        self, pool: WorkerThreads, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        super().__init__()
        self._pool = pool
        self._fn = fn
        self._args = args
        self._kwargs = kwargs
        self._thread: threading.Thread | None = None
        self._since = 0.0

    def run(self, thread: threading.Thread) -> None:
        if not self.set_running_or_notify_cancel():
            return
        self._since = time.monotonic()
        self._thread = thread
        try:
            result = self._fn(*self._args, **self._kwargs)
        except StopIteration as error:  # no asyncio.Future can have it: whoever waits would wait for ever
            self.set_exception(RuntimeError("raised StopIteration").with_traceback(error.__traceback__))
        except BaseException as error:  # it belongs to whoever waits, whatever it is
            self.set_exception(error)
        else:
            self.set_result(result)

    def cancel(self) -> bool:
        if super().cancel():
            return True
        if not self.done() and self._thread is not None:
            self._pool._abandon(self._thread, self._since)
        return False
