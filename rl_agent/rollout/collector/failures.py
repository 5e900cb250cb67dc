"""Counts why episodes have no reward, by message, so that the commonest reasons can be named.

Messages that differ only in numbers are one reason, of which the first message is kept as the example.
"""

import re
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path

from rl_agent.system.terminal import one_line
from rl_agent.types import Failure, writable

COMMONEST = 3
"""Reasons that a person is shown."""
MAX_AGENT_LOG_BYTES = 32 * 2**20
MAX_EXAMPLE = 300
"""Characters that are kept of an example."""

_NUMBERS = re.compile(r"\d+")


def is_worth_a_line(count: int) -> bool:
    """Return whether this failure of a reason is reported: the first ones, the 10th, the 100th, …"""
    return count <= COMMONEST or str(count).strip("0") == "1"


class FailureReasons:
    """The reasons of a rollout's failures, with how often each occurred."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def add(self, failure: Failure) -> int:
        """Count one more failure; return how often its reason has occurred by now."""
        message = one_line(failure.message[:MAX_EXAMPLE])
        reason = _NUMBERS.sub("#", f"{failure.kind}: {message}")
        self._counts[reason] += 1
        self._examples.setdefault(reason, f"{failure.kind}: {message}")
        return self._counts[reason]

    def commonest(self, most: int = COMMONEST) -> list[str]:
        """Return `12 x EngineError: message` for each of the commonest reasons, the most frequent first."""
        return [f"{count} x {self._examples[reason]}" for reason, count in self._counts.most_common(most)]


class TracebackLog:
    """Keeps the traceback of the first failure for each reason in a file, which the first one makes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reasons = FailureReasons()

    @property
    def is_empty(self) -> bool:
        return not self._reasons.commonest()

    def add(self, episode: str, failure: Failure, error: BaseException) -> None:
        if self._reasons.add(failure) > 1:
            return
        text = writable("".join(traceback.format_exception(error)))
        with suppress(OSError), self.path.open("a") as file:  # a full disk ends the rollout elsewhere
            file.write(f"{episode}\n{text}\n")


def log_of_agent(path: Path, text: str) -> None:
    """Append what an agent's program wrote to a file; a large one is kept beside the next."""
    with suppress(OSError):
        if path.exists() and path.stat().st_size > MAX_AGENT_LOG_BYTES:
            path.replace(path.with_suffix(".1.log"))
        with path.open("a") as file:
            file.write(writable(text.rstrip()) + "\n")
