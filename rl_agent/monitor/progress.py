"""Shows how far something is: one rewritten line on a terminal, else a plain line now and then.

It only reads a `RolloutSnapshot` when it draws, so it can be slow or absent without changing a rollout.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TextIO

from rl_agent.types import Split

if TYPE_CHECKING:
    from rich.live import Live

log = logging.getLogger(__name__)

REDRAW_INTERVAL_S = 0.5
LINE_INTERVAL_S = 5.0
MAX_LINE_INTERVAL_S = 60.0
"""The pause between two plain lines doubles up to this."""
LINE_CHARACTERS = 99
BAR_CHARACTERS = 10


@dataclass(frozen=True, slots=True)
class RolloutSnapshot:
    """The state of a rollout at one instant."""

    split: Split
    iteration: int
    submitted: int
    done: int
    running: int
    not_completed: int
    """Episodes that ended without a reward: failed, timed out or abandoned."""
    reward_mean: float | None
    response_tokens: int
    """Counted since this process started, as are `done_here` and `elapsed_s`."""
    done_here: int
    elapsed_s: float
    failures: Mapping[str, int] = field(default_factory=dict)
    """Number of failed episodes by kind; abandoned ones are not failures."""
    commonest_failures: tuple[str, ...] = ()
    """Their commonest messages with how often each occurred, the most frequent first."""

    def tokens_per_s(self) -> float:
        """Return the mean rate of sampled tokens so far."""
        return self.response_tokens / self.elapsed_s if self.elapsed_s else 0.0

    def left_s(self) -> float | None:
        """Estimate the seconds to the end at the mean pace so far; None before the first episode."""
        if not self.done_here:
            return None
        return (self.submitted - self.done) * self.elapsed_s / self.done_here

    def line(self, *, has_bar: bool = False) -> str:
        """Format it as one line, what matters first."""
        facts = [] if self.reward_mean is None else [f"reward {self.reward_mean:.3f}"]
        facts.append(f"{self.tokens_per_s():.0f} tok/s")
        facts += [] if (left_s := self.left_s()) is None else [f"{duration(left_s)} left"]
        if self.not_completed:
            facts.append(f"{self.not_completed} failed{_reasons(self)}")
        facts.append(f"{self.running} running")
        facts += self.commonest_failures[:1]
        return progress_line(f"{self.split} {self.iteration}", self.done, self.submitted, facts, has_bar)


def progress_line(what: str, done: int, total: int, facts: list[str], has_bar: bool = False) -> str:
    """Format `done` of `total` with what is known of it, cut at LINE_CHARACTERS."""
    filled = BAR_CHARACTERS * done // max(total, 1)
    bar = f"{'▇' * filled}{'▁' * (BAR_CHARACTERS - filled)} " if has_bar else ""
    return cut("  ".join([f"{what} {bar}{done}/{total}", *facts]))


def cut(line: str, length: int = LINE_CHARACTERS) -> str:
    """Return a line of at most `length` characters."""
    return line if len(line) <= length else f"{line[: length - 1]}…"


def _reasons(now: RolloutSnapshot) -> str:
    """Format failures, the most frequent first, as `: 3 EngineError, 1 TimeoutError`; empty without any."""
    kinds = sorted(now.failures.items(), key=lambda item: (-item[1], item[0]))
    return ": " + ", ".join(f"{count} {kind}" for kind, count in kinds) if kinds else ""


def duration(seconds: float) -> str:
    """Format seconds as `1:02:03` or `2:03`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class StderrHandler(logging.StreamHandler[TextIO]):
    """Logs to the present `sys.stderr`: a live line replaces it, and prints log lines above itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class LiveLine:
    """One line at the bottom of the terminal, rewritten and at last removed; none where stderr is a file."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.live import Live

            from rl_agent.system.terminal import console

            self._live = Live(console=console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def is_shown(self) -> bool:
        return self._live is not None

    def show(self, line: str) -> None:
        """Rewrite the line; does nothing where it is not shown."""
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)


@asynccontextmanager
async def shown(snapshot: Callable[[], RolloutSnapshot]) -> AsyncIterator[None]:
    """Show the rollout on stderr while the body runs."""
    async with asyncio.TaskGroup() as jobs:
        job = jobs.create_task(_show(snapshot), name="progress")
        try:
            yield
        finally:
            job.cancel()


async def _show(snapshot: Callable[[], RolloutSnapshot]) -> None:
    with LiveLine() as live:
        while live.is_shown:
            live.show(snapshot().line(has_bar=True))
            await asyncio.sleep(REDRAW_INTERVAL_S)
    pause_s = LINE_INTERVAL_S
    while True:
        await asyncio.sleep(pause_s)
        log.info("%s", snapshot().line())
        pause_s = min(2 * pause_s, MAX_LINE_INTERVAL_S)
