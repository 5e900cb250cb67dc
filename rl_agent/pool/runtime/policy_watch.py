"""Watches a placement policy of the user's: logs that it failed, and interrupts it where it does not return.

The scheduler runs in the main thread, and so does the policy. A thread looks at the time; it sends this
process a signal, whose handler raises PolicyStuck, but only while the policy is being asked. Python code is
ended by that, and what sleeps or waits; a loop in C is not, and the log says that the manager stands still.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rl_agent.pool.scheduler.placement import Placement
from rl_agent.pool.scheduler.policies import PolicyStuck

log = logging.getLogger(__name__)
STUCK_S = 5.0
"""A decision that has taken so long is reported while it goes on."""
INTERRUPT_S = 1.0
"""A method that has not returned after so long is interrupted."""
LOOK_S = 0.25
SIGNAL = signal.SIGVTALRM
LINES_FACTOR = 10
"""Another line follows after this many times as many failures."""


class PolicyWatch:
    """Watches the policy of one pool by the clock that times it; None: it is none of the user's."""

    def __init__(self, name: str, placement: Placement, clock: Callable[[], float] | None) -> None:
        self._name = name
        self._placement = placement
        self._clock = clock
        self._next_line = 1

    def note(self) -> None:
        """Log what has failed since the last line; called after each step of the scheduler."""
        placement = self._placement
        if placement.fallbacks >= self._next_line:
            self._next_line = placement.fallbacks * LINES_FACTOR
            times = "" if placement.fallbacks == 1 else f" ({placement.fallbacks} failures so far)"
            log.warning("policy=%s: %s; least_work decides instead%s", self._name, placement.fault, times)

    @contextmanager
    def running(self, look_s: float = LOOK_S, stuck_s: float = STUCK_S) -> Iterator[None]:
        """Watch from a thread, since a policy that does not return holds up the event loop."""
        if self._clock is None:
            yield
            return
        is_main = threading.current_thread() is threading.main_thread()
        before = signal.signal(SIGNAL, self._interrupt) if is_main else None
        is_over, of = threading.Event(), (self._clock, look_s, stuck_s)
        thread = threading.Thread(target=self._look, args=(is_over, *of), name="policy watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            if is_main:
                signal.signal(SIGNAL, before)

    def _is_stuck(self) -> bool:
        since = self._placement.asking_since
        return since is not None and self._clock is not None and self._clock() - since > INTERRUPT_S

    def _interrupt(self, *_: object) -> None:
        if self._is_stuck():
            raise PolicyStuck

    def _look(
        self, is_over: threading.Event, clock: Callable[[], float], look_s: float, stuck_s: float
    ) -> None:
        reported: float | None = None
        while not is_over.wait(look_s):
            if self._is_stuck() and signal.getsignal(SIGNAL) == self._interrupt:
                signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
            since = self._placement.asked_at
            if since is not None and since != reported and clock() - since > stuck_s:
                reported = since
                log.error(
                    "policy=%s: a decision has taken %.0f s and goes on; meanwhile the manager stands still",
                    self._name,
                    clock() - since,
                )
