"""Shares a trainer's devices with an engine of the pool, in turns: who generates, who trains, and when.

    groups ─► WindowedSource ── kept back while the window is open ──► trainer, which computes at once
                  └─ looks at the pool, asks `window` whether to open or close, gives or takes the devices

Only rank 0 has this. What is learnt about the length of windows is kept in the trainer's checkpoints.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rl_agent.config.sections.grpo import Placement
from rl_agent.errors import ConfigError, RetryLater
from rl_agent.rollout.comparison import Comparison
from rl_agent.trainer.grpo.data.samples import Group, GroupSource
from rl_agent.trainer.grpo.gpu_sharing.window import (
    LearntWindow,
    Waits,
    WindowState,
    is_to_be_open,
    learn,
    window_for,
)

_log = logging.getLogger(__name__)
_READ_EVERY_S = 0.5
_ASKED_WITHIN_S = 3.0
"""The time for the pool to have requests of the group that replaces one left out; it has none at once."""


class DeviceTurns(Protocol):
    """The turns of the trainer and an engine on the same devices."""

    def give(self) -> None: ...
    def take(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """The pool at one moment, as a trainer sees it that shares its devices with one engine."""

    has_requests: bool
    has_work: bool
    """Requests run at the shared engine, or wait for any."""
    ready: int
    """Other engines that serve what is wanted."""
    idle_s: Mapping[str, float]
    """The time that each other engine has stood idle since it joined, whatever version it serves: when an
    iteration begins, none has the newest one yet."""


def read_status(status: Mapping[str, Any], own: str, *, max_staleness: int) -> PoolSnapshot:
    """Read a manager's `/status`; `own` is the name of the shared engine."""
    requests, engines = status["requests"], status["engines"]
    oldest = status["weight_version"] - max_staleness
    others = [engine for engine in engines if engine["name"] != own and engine["state"] == "ready"]
    at_own = sum(engine["running"] for engine in engines if engine["name"] == own)
    return PoolSnapshot(
        has_requests=requests["open"] > 0,
        has_work=at_own > 0 or requests["open"] > requests["running"],
        ready=sum(engine["weight_version"] >= oldest for engine in others),
        idle_s={engine["id"]: engine["idle_s"] for engine in others},
    )


class SharedDevices:
    """Made with the trainer; `source` wraps the groups of one iteration after the other."""

    def __init__(
        self,
        placement: Placement,
        turns: DeviceTurns,
        ask_status: Callable[[], PoolSnapshot],
        *,
        replaced: Comparison | None,
        overlaps: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the devices; `replaced` says for which groups others are sampled, None: for none.

        Where rollouts of two iterations overlap, no window opens while other engines run all requests.
        """
        self.placement = placement
        self.is_open = False
        self.opened_s = 0.0
        """Seconds for which windows of this iteration have been open, closed ones included."""
        self.known: dict[int, LearntWindow] = {}
        self._overlaps = overlaps
        self._turns = turns
        self._ask_status = ask_status
        self._clock = clock
        self._replaced = replaced
        self._opened_at = 0.0
        self._expects_until = 0.0
        self._waited_s = 0.0
        self._idle_at_first: dict[str, float] = {}
        self._pool: PoolSnapshot | None = None
        self._read_at = -_READ_EVERY_S
        turns.take()  # an engine may have gone on while an earlier trainer was dead

    def source(self, source: GroupSource) -> "WindowedSource":
        """Wrap the groups of the next iteration, after learning from what the one before took."""
        self._learn()
        self.opened_s, self._waited_s, self._idle_at_first = 0.0, 0.0, {}
        return WindowedSource(source, self, clock=self._clock)

    def decide(self, groups: int, *, is_beginning: bool) -> None:
        """Open or close the window; `groups` are those that could be trained on now."""
        now = self._clock()
        pool = self._read_pool(now)
        open_s = now - self._opened_at if self.is_open else 0.0
        others = None if pool is None else pool.ready
        has_work = pool is None or pool.has_work or now < self._expects_until
        seen = WindowState(open_s, groups, others, has_work)
        length_s = window_for(self.known, others or 0).length_s
        is_open = self.is_open or (is_beginning and (has_work or not self._overlaps))
        if not is_to_be_open(self.placement, seen, is_open=is_open, length_s=length_s):
            self.close()
        elif not self.is_open:
            self.lend()

    def arrived(self, groups: list[Group]) -> None:
        """Record groups that arrived; for some, others are sampled of which the pool does not know yet."""
        replaced = self._replaced
        if replaced is not None and not all(replaced.is_informative(group.samples) for group in groups):
            self._expects_until = self._clock() + _ASKED_WITHIN_S

    def waited(self, seconds: float) -> None:
        """Record that the trainer had nothing to do for so long."""
        self._waited_s += seconds

    def numbers(self) -> dict[str, float]:
        """Return the metrics of the iteration."""
        return {"window_s": self.opened_s, "after_window_waiting_s": self._waited_s}

    def close(self) -> None:
        """Take the devices back. Raises DeadlineError."""
        if not self.is_open:
            return
        self._turns.take()
        self.is_open = False
        lasted_s = self._clock() - self._opened_at
        self.opened_s += lasted_s
        _log.info("the window is closed after %.1f s: it is the trainer's turn", lasted_s)

    def lend(self) -> None:
        """Let the engine have the devices."""
        self._turns.give()
        self.is_open = True
        self._opened_at = self._clock()
        _log.info("the window is open: it is the engine's turn")

    def _read_pool(self, now: float) -> PoolSnapshot | None:
        if now - self._read_at < _READ_EVERY_S:
            return self._pool
        self._read_at = now
        try:
            self._pool = pool = self._ask_status()
        except (ConfigError, RetryLater) as error:
            _log.warning("the pool cannot be looked at: %s", error)
            self._pool = None
            return None
        if pool.has_requests:
            self._idle_at_first = dict(pool.idle_s) | self._idle_at_first
        return pool

    def _learn(self) -> None:
        """Learn from the idle times up to now, which are the iteration's before."""
        self._read_at = -_READ_EVERY_S
        before = self._idle_at_first
        pool = self._read_pool(self._clock())
        idle = [pool.idle_s[name] - since for name, since in before.items() if pool and name in pool.idle_s]
        if idle and self.placement == "hybrid":
            self.known = learn(self.known, len(idle), Waits(self._waited_s, sum(idle) / len(idle)))
            _log.info(
                "the trainer waited %.1f s, %d other engines %.1f s: the next window lasts %.1f s",
                self._waited_s,
                len(idle),
                sum(idle) / len(idle),
                self.known[len(idle)].length_s,
            )


class WindowedSource:
    """Groups of an iteration, kept back while its window is open."""

    def __init__(self, source: GroupSource, devices: SharedDevices, *, clock: Callable[[], float]) -> None:
        self._source = source
        self._devices = devices
        self._clock = clock
        self._kept: list[Group] = []
        self._is_beginning = True
        self._is_over = False

    def take(self, most: int) -> list[Group] | None:
        """Take groups as from what it wraps; none while the window is open."""
        if self._kept and not self._devices.is_open:
            return self._give(most)
        self._ask(most)
        if self._devices.is_open:
            return []
        return self._give(most) if self._kept or not self._is_over else None

    def _ask(self, most: int) -> None:
        devices, start = self._devices, self._clock()
        if self._is_over:
            return
        arrived = self._source.take(most)
        if not devices.is_open and not arrived and not self._is_beginning:
            devices.waited(self._clock() - start)
        if arrived is None:
            self._is_over = True
            devices.close()
            return
        self._kept += arrived
        devices.arrived(arrived)
        devices.decide(len(self._kept), is_beginning=self._is_beginning)
        self._is_beginning = False

    def _give(self, most: int) -> list[Group]:
        groups, self._kept = self._kept[:most], self._kept[most:]
        return groups
