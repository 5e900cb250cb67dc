"""Threads that poll the shared folder, and waits that log which nodes they wait for."""

import threading
from collections.abc import Callable, Iterable

from rl_agent.errors import DeadlineError, RetryLater, StoreError

_FIRST_LINE_S, _EARLY_LINES_S, _LATE_LINES_S = 5.0, 10.0, 60.0
_EARLY_S = 120.0
"""A person watches the first minutes of a wait; after that, lines fill the log."""
_LONGEST_PAUSE_S = 1.0
_LONGEST_GAP_S = 2.0
_STOP_TIMEOUT_S = 5.0

Log = Callable[[str], None]
Clock = Callable[[], float]


class PollingThread:
    """A daemon thread that calls `poll` until it is stopped.

    `poll` returns the seconds until its next call. StoreError (the shared folder fails) is logged and tried
    again for `retry_s`; then it goes to `fail`, as any other exception does at once, and the thread ends.
    """

    def __init__(
        self,
        name: str,
        poll: Callable[[], float],
        *,
        fail: Callable[[Exception], None],
        log: Log,
        clock: Clock,
        retry_s: float,
        least_pause_s: float = 0.0,
    ) -> None:
        self.count = 0
        """Calls that succeeded."""
        self._poll = poll
        self._fail = fail
        self._log = log
        self._clock = clock
        self._retry_s = retry_s
        self._least_pause_s = least_pause_s
        self._failing_since: float | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Poll now, or once the least pause is over."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread; one that hangs in the file system is left behind, and cannot delay the exit."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP_TIMEOUT_S)

    def poll_once(self) -> float | None:
        """Call `poll` once; return the seconds until the next call, or None if the thread must end."""
        try:
            pause_s = self._poll()
        except StoreError as error:
            now = self._clock()
            if self._failing_since is None:
                self._failing_since = now
                self._log(f"{error}; trying again for {self._retry_s:.0f} s")
            if now - self._failing_since >= self._retry_s:
                self._fail(error)
                return None
            return self._retry_s / 20
        except Exception as error:
            self._fail(error)
            return None
        self._failing_since = None
        self.count += 1
        return pause_s

    def _run(self) -> None:
        while not self._stopping.is_set() and (pause_s := self.poll_once()) is not None:
            self._stopping.wait(self._least_pause_s)
            self._wake.wait(max(pause_s - self._least_pause_s, 0.0))
            self._wake.clear()


def next_line_s(waited_s: float) -> float:
    """Return how long a wait has lasted when its next line is due, if it has lasted `waited_s` now."""
    if waited_s < _FIRST_LINE_S:
        return _FIRST_LINE_S
    return waited_s + (_EARLY_LINES_S if waited_s < _EARLY_S else _LATE_LINES_S)


class Wait:
    """A wait with a deadline that logs, now and then, which nodes it waits for.

    `who` returns an empty text while this node waits for itself alone; then nothing is logged.
    """

    def __init__(
        self,
        what: str,
        who: Callable[[], str],
        *,
        timeout_s: float,
        lease_s: float,
        threads: Iterable[PollingThread],
        log: Log,
        clock: Clock,
    ) -> None:
        self._what = what
        self._who = who
        self._timeout_s = timeout_s
        self._lease_s = lease_s
        self._threads = list(threads)
        self._log = log
        self._clock = clock
        self._since = self._now = clock()
        self._next_line = self._since + next_line_s(0)
        self._counts: list[int] = []
        self._hanging_s = 0.0

    def check(self) -> float:
        """Return the seconds, at most one, until the next check.

        Raises DeadlineError at the deadline, RetryLater if the shared folder hangs.
        """
        now = self._clock()
        waited_s = now - self._since
        self._check_threads(now - self._now)
        self._now = now
        if waited_s >= self._timeout_s:
            who = self._who() or "this node itself"
            raise DeadlineError(f"{self._what}: waited {waited_s:.0f} s for {who}")
        if now >= self._next_line:
            self._next_line = self._since + next_line_s(waited_s)
            if who := self._who():
                self._log(f"{self._what}: waiting for {who}, {waited_s:.0f} s so far")
        return min(_LONGEST_PAUSE_S, self._timeout_s - waited_s)

    def _check_threads(self, gap_s: float) -> None:
        """Raises RetryLater if a thread has made no progress for a lease.

        A gap between two checks counts for little: this process may have been stopped itself.
        """
        counts = [thread.count for thread in self._threads]
        is_hanging = any(before == count for before, count in zip(self._counts, counts, strict=False))
        self._hanging_s = self._hanging_s + min(gap_s, _LONGEST_GAP_S) if is_hanging else 0.0
        if not is_hanging:
            self._counts = counts
        if self._hanging_s > self._lease_s:
            raise RetryLater(f"the shared folder has not answered for {self._hanging_s:.0f} s")
