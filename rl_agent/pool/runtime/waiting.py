"""Reports in the manager's log that requests wait because no engine is ready."""

import asyncio
import logging
from collections.abc import Callable

from rl_agent.pool.scheduler.records import EngineState
from rl_agent.pool.scheduler.state import PoolState

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
PATIENCE_S = 3.0
"""Requests have waited for so long when it is reported, ..."""
REPEAT_S = 60.0
"""... and again after so long."""


class WaitReport:
    """Follows whether requests wait for a first engine; `look` is called again and again."""

    def __init__(self, state: PoolState, num_waiting: Callable[[], int], *, timeout_s: float) -> None:
        self._state = state
        self._num_waiting = num_waiting
        self._timeout_s = timeout_s
        self._since: float | None = None
        self._report_at = 0.0
        self._is_reported = False

    def look(self, now: float) -> str:
        """Return the line that is due; empty if none is."""
        waiting = self._num_waiting()
        if not waiting or any(self._state.living(EngineState.READY)):
            line = "an engine is ready: requests go on" if waiting and self._is_reported else ""
            self._since, self._is_reported = None, False
            return line
        if self._since is None:
            self._since, self._report_at = now, now + PATIENCE_S
        if now < self._report_at:
            return ""
        self._report_at, self._is_reported = now + REPEAT_S, True
        present = len(self._state.engines)
        why = f"the {present} there are not ready" if present else "none has joined"
        return (
            f"{waiting} requests wait, for {now - self._since:.0f} s by now, as the pool has no ready engine"
            f" ({why}); each waits for at most {self._timeout_s:g} s, unless it names another time"
        )

    async def run(self, clock: Callable[[], float]) -> None:
        """Log until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if line := self.look(clock()):
                log.warning("%s", line)
