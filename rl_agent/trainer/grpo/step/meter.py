"""Measures what the time between two steps cost, and what the engines of the pool did in it.

    manager ◄─/step, how long the trainer waited─ PoolWatch
    manager ──/status──► PoolWatch (a thread) ─► PoolTotals ─┐
    price of this node ─────────────────────────────────────┴─► Meter.read ─► numbers since the last step
                                                                   └── file: where the next process goes on

A reading is the difference to the one before. The last one is kept in a file of the attempt, so the time in
which a trainer was dead, and what its engines cost meanwhile, is part of the first step after it. A manager
that was restarted counts from nothing again, and so is counted from nothing.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rl_agent.errors import ConfigError, RetryLater
from rl_agent.pool.client import Manager
from rl_agent.system.files import write_whole
from rl_agent.trainer.grpo.background import BackgroundThread

_log = logging.getLogger(__name__)
_PATIENCE_S = 0.25
"""Longest wait of a step for an answer."""
_HOUR_S = 3600.0
SHORTEST_S = 1e-3


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """Sums over all engines that a manager has had since it started, and how many are ready now."""

    engines: int = 0
    up_s: float = 0.0
    idle_s: float = 0.0
    """Ready, and without a request."""
    recomputed_tokens: int = 0
    prefilled_again_tokens: int = 0
    cost: float = 0.0
    finishing_s: float = 0.0
    """The time without new requests, to finish what older weights began."""
    wanted: int | None = None
    """Engines that the pool wants now; None: it asks for none (`pool.scale.kinds`)."""
    wanted_reason: str = ""

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> "PoolTotals":
        """Read the totals from a manager's /status."""
        ready = sum(engine["state"] == "ready" for engine in status["engines"])
        demand: Mapping[str, Any] = status.get("wanted") or {}
        counts = demand.get("counts") or {}
        return cls(
            engines=ready,
            wanted=sum(counts.values()) if counts else None,
            wanted_reason=str(demand.get("reason", "")) if counts else "",
            **{name: status["totals"][name] for name in cls._sums()},
        )

    def since(self, before: "PoolTotals") -> "PoolTotals":
        """Return the difference; all of it where the manager has begun to count again."""
        if self.up_s < before.up_s:
            return self
        return replace(self, **{name: getattr(self, name) - getattr(before, name) for name in self._sums()})

    @classmethod
    def _sums(cls) -> list[str]:
        return [field.name for field in fields(cls) if field.name not in NO_SUMS]


NO_SUMS = frozenset({"engines", "wanted", "wanted_reason"})


@dataclass(frozen=True, slots=True)
class StepReport:
    """The manager's report of a step that has ended."""

    waited_s: float
    """The time spent waiting without a group to train on."""
    lasted_s: float
    steps_together: int
    is_last: bool
    """The run ends with what has been submitted to the pool."""


class Meter:
    """Counts, on rank 0, what the time between two steps costs.

    `totals` says what the pool counts now, None where nobody knows.
    """

    def __init__(
        self,
        price_per_hour: float,
        file: Path | None = None,
        *,
        totals: Callable[[], PoolTotals | None] = lambda: None,
        report: Callable[[StepReport], None] = lambda step: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._price_per_hour = price_per_hour
        self._file = file
        self._totals = totals
        self._report = report
        self.wanted_reason = ""
        """The reason that the pool wants as many engines as it does; empty where it asks for none."""
        self._clock = clock
        self._read_at, self._before = clock(), PoolTotals()
        if file is not None and file.exists():
            kept = json.loads(file.read_bytes())
            self._read_at, self._before = kept["time"], PoolTotals(**kept["pool"])

    def read(self, trained_tokens: float, step: StepReport | None = None) -> dict[str, float]:
        """Return metrics of the time since the last reading, in which so many tokens were trained on.

        `step` is reported to the pool before it is asked.
        """
        if step is not None:
            self._report(step)
        now, totals = self._clock(), self._totals()
        cost = max(0.0, now - self._read_at) * self._price_per_hour / _HOUR_S
        numbers: dict[str, float] = {}
        if totals is not None:
            done = totals.since(self._before)
            cost += done.cost
            numbers = {
                "engines": done.engines,
                "engines_up_s": done.up_s,
                "engines_idle_s": done.idle_s,
                "engines_draining_s": done.finishing_s,
                "recomputed_tokens": done.recomputed_tokens,
                "prefilled_again_tokens": done.prefilled_again_tokens,
            }
            self.wanted_reason = totals.wanted_reason
            if totals.wanted is not None:
                numbers["engines_wanted"] = totals.wanted
            if done.up_s:
                numbers["engines_idle_share"] = done.idle_s / done.up_s
        if self._price_per_hour or (totals is not None and totals.cost):
            numbers["cost"] = cost
            if trained_tokens:
                numbers["cost_per_million_tokens"] = 1e6 * cost / trained_tokens
        self._keep(now, totals or self._before)
        return numbers

    def _keep(self, now: float, totals: PoolTotals) -> None:
        self._read_at, self._before = now, totals
        if self._file is not None:
            write_whole(self._file, json.dumps({"time": now, "pool": asdict(totals)}), is_durable=False)


class PoolWatch(BackgroundThread):
    """Asks a manager in a thread of its own, so that a step waits for an answer no longer than a moment."""

    def __init__(self, manager: Manager, run: str, price_per_hour: float) -> None:
        super().__init__("watch-pool")
        self._manager = manager
        self._path = f"/runs/{quote(run, safe='')}/step"
        self._price_per_hour = price_per_hour
        self._step: StepReport | None = None
        """The newest step, not reported yet."""
        self._has_warned = False
        self._newest: PoolTotals | None = None
        self._is_asked = False

    def totals(self) -> PoolTotals | None:
        """Ask for the totals; those of the last answer if none comes soon, None before the first."""
        with self._changed:
            self._is_asked = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_asked, timeout=_PATIENCE_S)
            return self._newest

    def report(self, step: StepReport) -> None:
        """Tell the manager of a step, before it is asked the next time."""
        with self._changed:
            self._step = step

    def _run(self) -> None:
        problem = ""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_asked or self._is_stopping)
                if self._is_stopping:
                    return
                step, self._step = self._step, None
            if step is not None:
                self._send(step)
            totals = None
            try:
                status = self._manager.ask("/status")
                totals, problem = PoolTotals.of(status), ""
            except (ConfigError, RetryLater, KeyError) as error:
                if not problem:
                    _log.warning("the pool does not say what its engines do: %s", error)
                problem = str(error)
            with self._changed:
                self._newest = totals or self._newest
                self._is_asked = False
                self._changed.notify_all()

    def _send(self, step: StepReport) -> None:
        """Report a step; a manager that does not take it decides without."""
        body = asdict(step) | {"price_per_hour": self._price_per_hour}
        try:
            self._manager.ask(self._path, body | {"lasted_s": max(step.lasted_s, SHORTEST_S)})
        except (ConfigError, RetryLater) as error:
            if not self._has_warned:
                _log.warning("the pool is not told how long the trainer waits: %s", error)
            self._has_warned = True
