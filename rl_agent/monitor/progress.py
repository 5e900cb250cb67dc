"""Shows the progress of a rollout: a live table on a terminal, else a log line now and then.

It only reads a `RolloutSnapshot` when it draws, so it can be slow or absent without changing a rollout.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from rl_agent.types import Split

if TYPE_CHECKING:
    from rich.console import Group

log = logging.getLogger(__name__)

REDRAW_INTERVAL_S = 0.5
LINE_INTERVAL_S = 5.0
SLOWEST = 5


@dataclass(frozen=True, slots=True)
class SlowEpisode:
    """An episode that has been running for a long time."""

    name: str
    steps: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class RolloutSnapshot:
    """The state of a rollout at one instant."""

    split: Split
    iteration: int
    submitted: int
    done: int
    running: int
    finishing: int
    """Episodes that ended and are being scored by a judge and written."""
    at_engine: int
    engine_limit: int
    queued: int
    not_completed: int
    """Episodes that ended without a reward: failed, timed out or abandoned."""
    reward_mean: float | None
    response_tokens: int
    """Counted since this process started, as are `done_here` and `elapsed_s`."""
    done_here: int
    elapsed_s: float
    slowest: tuple[SlowEpisode, ...]
    failures: Mapping[str, int] = field(default_factory=dict)
    """Number of failed episodes by kind; abandoned ones are not failures."""
    commonest_failures: tuple[str, ...] = ()
    """Their commonest messages with how often each occurred, the most frequent first."""

    def tokens_per_s(self) -> float:
        """Return the mean rate of sampled tokens so far."""
        return self.response_tokens / self.elapsed_s if self.elapsed_s else 0.0

    def eta_s(self) -> float | None:
        """Estimate the seconds to the end at the mean pace so far; None before the first episode."""
        if not self.done_here:
            return None
        return (self.submitted - self.done) * self.elapsed_s / self.done_here


def line(now: RolloutSnapshot) -> str:
    """Format a snapshot as one log line."""
    reward = "-" if now.reward_mean is None else f"{now.reward_mean:.3f}"
    return (
        f"{now.split} iteration {now.iteration}: {now.done}/{now.submitted} episodes done"
        f" ({now.not_completed} of them failed{_reasons(now)}),"
        f" {now.running} running, {now.finishing} being scored and saved,"
        f" {now.at_engine} requests generating (at most {now.engine_limit}), {now.queued} waiting,"
        f" reward {reward}, {now.tokens_per_s():.0f} tokens/s, {duration(now.elapsed_s)} elapsed,"
        f" {duration(now.eta_s())} left{_example(now)}"
    )


def _example(now: RolloutSnapshot) -> str:
    """Return the commonest failure's message, for the end of a line; empty without any."""
    return f"; most failed like this: {now.commonest_failures[0]}" if now.commonest_failures else ""


def _reasons(now: RolloutSnapshot) -> str:
    """Format failures, the most frequent first, as `: 3 EngineError, 1 TimeoutError`; empty without any."""
    kinds = sorted(now.failures.items(), key=lambda item: (-item[1], item[0]))
    return ": " + ", ".join(f"{count} {kind}" for kind, count in kinds) if kinds else ""


def duration(seconds: float | None) -> str:
    """Format seconds as `1:02:03` or `2:03`, and `?` if they are not known."""
    if seconds is None:
        return "?"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class StderrHandler(logging.StreamHandler[TextIO]):
    """Logs to the present `sys.stderr`: a live table replaces it, and prints log lines above itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


@asynccontextmanager
async def shown(snapshot: Callable[[], RolloutSnapshot]) -> AsyncIterator[None]:
    """Show the rollout on stderr while the body runs."""
    async with asyncio.TaskGroup() as jobs:
        show = _show_table if sys.stderr.isatty() else _show_lines
        job = jobs.create_task(show(snapshot), name="progress")
        try:
            yield
        finally:
            job.cancel()


async def _show_lines(snapshot: Callable[[], RolloutSnapshot]) -> None:
    while True:
        await asyncio.sleep(LINE_INTERVAL_S)
        log.info("%s", line(snapshot()))


async def _show_table(snapshot: Callable[[], RolloutSnapshot]) -> None:
    from rich.live import Live

    from rl_agent.system.terminal import console

    with Live(console=console(stderr=True), auto_refresh=False, transient=True) as live:
        while True:
            live.update(_table(snapshot()), refresh=True)
            await asyncio.sleep(REDRAW_INTERVAL_S)


def _table(now: RolloutSnapshot) -> "Group":
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 2))
    head.add_row(
        f"[bold]{now.split}[/] iteration {now.iteration}",
        ProgressBar(total=max(now.submitted, 1), completed=now.done, width=40),
        f"{now.done}/{now.submitted}",
        f"{duration(now.elapsed_s)} elapsed, {duration(now.eta_s())} left",
    )
    states = Table.grid(padding=(0, 2))
    for name, value in _states(now).items():
        states.add_row(f"[dim]{name}[/]", value)
    slowest = Table("slowest", "steps", "running for", box=None, header_style="dim")
    for slow in now.slowest:
        slowest.add_row(slow.name, str(slow.steps), duration(slow.elapsed_s))
    body = Table.grid(padding=(0, 4))
    body.add_row(states, slowest)
    failures = [
        Text(f"failed: {reason}", overflow="ellipsis", no_wrap=True) for reason in now.commonest_failures
    ]
    return Group(head, body, *failures)


def _states(now: RolloutSnapshot) -> dict[str, str]:
    waiting = now.submitted - now.done - now.running - now.finishing
    return {
        "waiting": str(waiting),
        "running": str(now.running),
        "requests": f"{now.at_engine} generating (at most {now.engine_limit}), {now.queued} waiting",
        "scored and saved": str(now.finishing),
        "failed": f"{now.not_completed}{_reasons(now)}",
        "reward": "-" if now.reward_mean is None else f"{now.reward_mean:.3f}",
        "tokens/s": f"{now.tokens_per_s():.0f}",
    }
