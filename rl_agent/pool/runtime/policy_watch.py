"""Says in the log what a placement policy of the user's does to the manager: it failed, or never returns."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rl_agent.pool.scheduler.placement import Placement

log = logging.getLogger(__name__)
STUCK_S = 5.0
"""A decision that has taken so long is reported while it goes on."""
LOOK_S = 1.0
LINES_FACTOR = 10
"""After so many times as many failures there is another line."""


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
        is_over, of = threading.Event(), (self._clock, look_s, stuck_s)
        thread = threading.Thread(target=self._look, args=(is_over, *of), name="policy watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _look(
        self, is_over: threading.Event, clock: Callable[[], float], look_s: float, stuck_s: float
    ) -> None:
        reported: float | None = None
        while not is_over.wait(look_s):
            since = self._placement.asked_at
            if since is not None and since != reported and clock() - since > stuck_s:
                reported = since
                log.error(
                    "policy=%s: a decision has taken %.0f s and goes on; meanwhile the manager stands still",
                    self._name,
                    clock() - since,
                )
