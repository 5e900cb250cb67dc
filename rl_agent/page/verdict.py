"""What `doctor` says of a run, looked up beside the requests: a look takes some heartbeats of a living run.

asked ─► the last verdict at once; if it is old, one look begins in a thread of its own
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread

from rl_agent.cluster.member.look import look_twice
from rl_agent.cluster.protocol.diagnosis import diagnose
from rl_agent.cluster.shared_fs.folder import SharedFolder
from rl_agent.errors import ConfigError
from rl_agent.paths import RunPaths

LOOK_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The lines of `doctor`; none of them before the first look is done."""

    seen: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    is_over: bool = False
    """The run has ended, so that nothing will change any more."""
    is_known: bool = False
    has_begun: bool = False
    """There is a run, of which the lines tell."""


class Doctor:
    """The newest diagnosis of one log path."""

    def __init__(self, paths: RunPaths, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = paths.log_path
        self._clock = clock
        self._lock = Lock()
        self._newest = Diagnosis()
        self._is_looking = False
        self._next_look = float("-inf")

    def diagnosis(self) -> Diagnosis:
        """Return the newest diagnosis, and begin a look if it is old."""
        with self._lock:
            is_due = not self._is_looking and self._clock() >= self._next_look
            self._is_looking |= is_due
        if is_due:
            Thread(target=self._look, name=f"doctor {self._folder.name}", daemon=True).start()
        return self._newest

    def _look(self) -> None:
        try:
            found = look(self._folder)
        except Exception as error:  # files of a foreign version, a folder that is being deleted
            found = Diagnosis((f"the run cannot be diagnosed: {error}",), is_known=True)
        with self._lock:
            self._newest = found
            self._is_looking = False
            self._next_look = self._clock() + LOOK_EVERY_S


def look(log_path: Path) -> Diagnosis:
    """Take one look at a log path; a folder where no run has begun is no fault."""
    try:
        polls = look_twice(SharedFolder(log_path))
    except ConfigError as error:
        return Diagnosis((str(error),), is_known=True)
    seen, advice = diagnose(polls)
    return Diagnosis(tuple(seen), tuple(advice), polls.view.ended is not None, True, True)
