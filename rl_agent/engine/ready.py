"""Waits for a starting server: readiness and liveness together, to a deadline.

starting --answers with the wanted model--> ready
   |--process ends------------------------> EngineDied with the last lines of its log
   |--another program answers-------------> ConfigError
   '--deadline----------------------------> DeadlineError
"""

import time
from collections.abc import Callable
from pathlib import Path

from rl_agent.engine.server import Answer, Probe, last_lines
from rl_agent.errors import DeadlineError, EngineDied, MachineError

_POLL_S = 0.25


def wait_ready(
    ask: Callable[[], Probe],
    is_alive: Callable[[], bool],
    log: Path,
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    on_wait: Callable[[float], None] = lambda waited_s: None,
) -> Probe:
    """Return the probe that found the wanted model, at most `timeout_s` after the call.

    `on_wait` is called with the seconds so far after each look that found nothing yet.
    """
    started = clock()
    while True:
        if not is_alive():
            waited_s = clock() - started
            raise EngineDied(
                f"the engine ended {waited_s:.0f} s after the wait began; {log} ends:\n{last_lines(log)}"
            )
        probe = ask()
        if probe.answer is Answer.WANTED:
            return probe
        if probe.answer in (Answer.STRANGER, Answer.OLD_VERSION):
            raise MachineError(f"another program answers at the engine's address: {probe.detail}")
        if clock() - started >= timeout_s:
            raise DeadlineError(
                f"the engine was not ready after engine.start_timeout_s={timeout_s:.0f} ({probe.detail});"
                f" {log} ends:\n{last_lines(log)}"
            )
        on_wait(clock() - started)
        sleep(_POLL_S)
