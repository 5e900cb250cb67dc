"""Threads that take turns, and waits that say for whom: the two things a node does besides its phases."""

import threading
from collections.abc import Callable, Iterable

from rl_agent.errors import DeadlineError, RetryLater, StoreError

FIRST_LINE_S = 10.0
NEXT_LINES_S = 60.0
_LONGEST_PAUSE_S = 1.0
_LONGEST_GAP_S = 2.0
_STOP_TIMEOUT_S = 5.0

Say = Callable[[str], None]
Clock = Callable[[], float]


class Turns:
    """A daemon thread that takes turns until it is stopped. What a turn raises goes to `fail`, and ends it.

    `turn` returns the seconds until the next one. A shared folder that fails (StoreError) is tried again for
    `patience_s`, and that is said.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], float],
        *,
        fail: Callable[[Exception], None],
        say: Say,
        clock: Clock,
        patience_s: float,
        least_pause_s: float = 0.0,
    ) -> None:
        self.count = 0
        self._turn = turn
        self._fail = fail
        self._say = say
        self._clock = clock
        self._patience_s = patience_s
        self._least_pause_s = least_pause_s
        self._failing_since: float | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def poke(self) -> None:
        """Take the next turn now, or after the least pause."""
        self._wake.set()

    def stop(self) -> None:
        """Returns when the thread has ended, or hangs in the file system: it cannot hold up the exit."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP_TIMEOUT_S)

    def take(self) -> float | None:
        """One turn: seconds until the next one, None if it failed for good."""
        try:
            pause_s = self._turn()
        except StoreError as error:
            now = self._clock()
            if self._failing_since is None:
                self._failing_since = now
                self._say(f"{error}; trying again for {self._patience_s:.0f} s")
            if now - self._failing_since >= self._patience_s:
                self._fail(error)
                return None
            return self._patience_s / 20
        except Exception as error:
            self._fail(error)
            return None
        self._failing_since = None
        self.count += 1
        return pause_s

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause_s = self.take()
            if pause_s is None:
                return
            self._stopping.wait(self._least_pause_s)
            self._wake.wait(max(pause_s - self._least_pause_s, 0.0))
            self._wake.clear()


class Wait:
    """One wait: says from time to time for whom, ends at a deadline, and when the shared folder hangs.

    `who` is empty while this node waits for nobody but itself: nothing is said of that.
    """

    def __init__(
        self,
        what: str,
        who: Callable[[], str],
        *,
        timeout_s: float,
        lease_s: float,
        turns: Iterable[Turns],
        say: Say,
        clock: Clock,
    ) -> None:
        self._what = what
        self._who = who
        self._timeout_s = timeout_s
        self._lease_s = lease_s
        self._turns = list(turns)
        self._say = say
        self._clock = clock
        self._since = self._now = clock()
        self._next_line = self._since + FIRST_LINE_S
        self._counts: list[int] = []
        self._hanging_s = 0.0

    def look(self) -> float:
        """Seconds until it wants to be called again, at most one. Raises DeadlineError, RetryLater."""
        now = self._clock()
        waited_s = now - self._since
        self._check_turns(now - self._now)
        self._now = now
        if waited_s >= self._timeout_s:
            who = self._who() or "this node itself"
            raise DeadlineError(f"{self._what}: waited {waited_s:.0f} s for {who}")
        if now >= self._next_line:
            self._next_line = now + NEXT_LINES_S
            if who := self._who():
                self._say(f"{self._what}: waiting for {who}, {waited_s:.0f} s so far")
        return min(_LONGEST_PAUSE_S, self._timeout_s - waited_s)

    def _check_turns(self, gap_s: float) -> None:
        """A thread that hangs in the file system tells nothing; a process that was stopped proves nothing."""
        counts = [turns.count for turns in self._turns]
        is_hanging = any(before == count for before, count in zip(self._counts, counts, strict=False))
        self._hanging_s = self._hanging_s + min(gap_s, _LONGEST_GAP_S) if is_hanging else 0.0
        if not is_hanging:
            self._counts = counts
        if self._hanging_s > self._lease_s:
            raise RetryLater(f"the shared folder has not answered for {self._hanging_s:.0f} s")
