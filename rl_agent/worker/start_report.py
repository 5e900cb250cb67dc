"""Lines about an engine that is not ready yet: loading and compiling a model takes a minute or more."""

import logging
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from rl_agent.engine.server import LOG_ENDS, last_words

log = logging.getLogger(__name__)
EVERY_S = 5.0


class StartReport:
    def __init__(
        self, name: str, path: Path, timeout_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        """`path` is of the engine's own log, `timeout_s` of its start."""
        self._name = name
        self._path = path
        self._timeout_s = timeout_s
        self._clock = clock
        self._began = clock()
        self._next_s = EVERY_S

    def look(self) -> None:
        """Log a line every few seconds, with the end of the engine's log."""
        waited_s = self._clock() - self._began
        if waited_s < self._next_s:
            return
        self._next_s = waited_s + EVERY_S
        log.info(
            "engine %s loads and compiles its model, %.0f s so far (at most %g)%s%s",
            self._name,
            waited_s,
            self._timeout_s,
            LOG_ENDS,
            last_words(self._path),
        )
