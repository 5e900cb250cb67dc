"""Counts what a run's judge has cost, on all nodes and in all its processes, against a limit.

Every process appends what it spends to a file of its own in a shared folder; a file's torn last line and what
is not a number count as nothing. Others' files are read again every `REFRESH_S`, so a limit may be passed
by what is asked for meanwhile.
"""

import logging
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from rl_agent.errors import ConfigError

log = logging.getLogger(__name__)

REFRESH_S = 30.0


def spent_usd(folder: Path) -> float:
    """Return what all processes have written down so far, in dollars."""
    return sum(_sum(path) for path in folder.glob("*.txt"))


def _sum(path: Path) -> float:
    total = 0.0
    try:
        lines = path.read_text(encoding="ascii", errors="replace").split("\n")
    except OSError:
        return 0.0
    for line in lines[:-1]:
        try:
            total += float(line)
        except ValueError:  # a full disk tore it
            continue
    return total


class JudgeBudget:
    """The amount that may still be spent; its methods block on the disk for a moment."""

    def __init__(
        self, limit_usd: float | None, folder: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit_usd = limit_usd
        self._folder = folder
        self._own = folder / f"{os.getpid()}-{secrets.token_hex(6)}.txt"
        self._clock = clock
        self._known_usd = 0.0
        self._read_at: float | None = None

    def check(self) -> None:
        """Raises ConfigError if everything is spent."""
        if self._limit_usd is None:
            return
        now = self._clock()
        if self._read_at is None or now - self._read_at >= REFRESH_S:
            self._known_usd, self._read_at = spent_usd(self._folder), now
        if self._known_usd >= self._limit_usd:
            raise refusal(self._known_usd, self._limit_usd)

    def add(self, cost_usd: float) -> None:
        """Write down what an answer cost."""
        if self._limit_usd is None or not cost_usd:
            return
        self._known_usd += cost_usd
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._own.open("a", encoding="ascii") as file:
                file.write(f"{cost_usd!r}\n")
        except OSError as error:  # a full disk costs money, not the verdict
            log.warning("the cost of the judge cannot be recorded: %s", error)


def refusal(spent: float, limit_usd: float) -> ConfigError:
    """Return why nothing more is asked, and the way out."""
    return ConfigError(
        f"openai_config.budget_usd={limit_usd:g} is spent (${spent:.4f}): the judge is not asked any more;"
        " raise it and continue with --resume, or use rollout.reward=rule"
    )
