"""Measures a pool for `wanted`: its queue, its engines' speeds, a trainer's steps, the time of starts. Pure.

One gauge goes with one pool, in a manager or in virtual time: `demand` is asked for before each decision and
`decided` called after it, `step_ended` with each step of a streaming trainer.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from rl_agent.pool.demand.demand import Demand, TrainerSteps
from rl_agent.pool.demand.records import EngineKind, Wanted
from rl_agent.pool.scheduler.dispatch import expected_tokens_left
from rl_agent.pool.scheduler.records import EngineState, EngineTotals
from rl_agent.pool.scheduler.state import PoolState, totals_of

SAMPLED = 256
"""Open requests by which the rest of them is judged."""
NEWEST = 0.3
"""Weight of the newest start among those of a kind."""
LONGEST_START_S = 7200.0
REQUESTS_SHARE = 8
"""An engine with less than this part of its places taken is not worth having."""
SILENT_S = 1800.0
"""A trainer whose last step ended before, while nothing is open, waits for nothing."""


@dataclass(frozen=True, slots=True)
class TrainerStep:
    """One optimizer step, as its trainer reports it."""

    waited_s: float
    lasted_s: float
    steps_together: int = 1
    """The steps of all iterations that may be under way at once: one may wait for what the next need not."""
    price_per_hour: float = 0.0
    is_last: bool = False
    """The run ends with what has been submitted."""


@dataclass(frozen=True, slots=True)
class _Measured:
    """A step and what the engines did in it."""

    step: TrainerStep
    tokens: float
    engine_s: float
    idle_s: float
    engine_tokens_per_s: float


@dataclass(slots=True)
class DemandGauge:
    kinds: tuple[EngineKind, ...]
    spent_before: float = 0.0
    """Dollars, by managers before this one."""
    start_s: dict[str, float] = field(default_factory=dict)
    """Learned, by kind."""
    _speeds: dict[str, float] = field(default_factory=dict)
    _steps: deque[_Measured] = field(default_factory=deque)
    _step_at: float = 0.0
    _tokens_then: float = 0.0
    _totals_then: EngineTotals = field(default_factory=EngineTotals)
    _ready: dict[str, set[str]] = field(default_factory=dict)
    """Engines of each kind that were ready at the last look."""
    _asked: dict[str, deque[float]] = field(default_factory=dict)
    """The times at which engines were asked for that have not come yet, by kind."""

    def step_ended(self, state: PoolState, step: TrainerStep, now: float) -> None:
        """Record a step of the trainer, which has just ended."""
        totals, tokens = totals_of(state, now), float(state.account.tokens)
        before = self._totals_then
        speeds = [engine.tokens_per_s for engine in state.living(EngineState.READY) if engine.tokens_per_s]
        measurement = _Measured(
            step,
            max(0.0, tokens - self._tokens_then),
            max(0.0, totals.up_s - before.up_s),
            max(0.0, totals.idle_s - before.idle_s),
            sum(speeds) / len(speeds) if speeds else 0.0,
        )
        self._tokens_then, self._totals_then, self._step_at = tokens, totals, now
        self._steps.append(measurement)
        while len(self._steps) > step.steps_together:
            self._steps.popleft()

    def decided(self, demand: Wanted, now: float) -> None:
        """Note how many engines are awaited from now on."""
        for kind, times in self._asked.items():
            missing = max(0, demand.counts.get(kind, 0) - len(self._ready[kind]))
            while len(times) > missing:
                times.pop()
            while len(times) < missing:
                times.append(now)

    def demand(self, state: PoolState, now: float, num_unread: int = 0) -> Demand:
        """Measure the pool now; `num_unread` more requests come once an engine has read their text."""
        engines = list(state.living(EngineState.READY))
        names = {kind.name for kind in self.kinds}
        kind_of = {e.engine_id: e.offer.kind if e.offer.kind in names else "" for e in engines}
        present = Counter(kind_of.values())
        self._learn_starts(kind_of, now)
        self._learn_speeds(
            {kind: [e.tokens_per_s for e in engines if kind_of[e.engine_id] == kind] for kind in present}
        )
        others = [e for e in state.engines.values() if e.offer.kind not in names]
        capacity = min((e.offer.capacity for e in engines), default=1)
        account = state.account
        open_requests = account.submitted - account.completed - account.failed
        tokens, left_s = _open_work(state, open_requests, now)
        open_requests += num_unread
        return Demand(
            open_requests=open_requests,
            open_tokens=tokens + num_unread,  # one each: how long their responses may be is not known yet
            left_s=left_s,
            steps=self._newest_steps(open_requests, now),
            tokens_per_s=dict(self._speeds),
            present=present,
            start_s=dict(self.start_s),
            awaited_s={kind: tuple(now - at for at in times) for kind, times in self._asked.items()},
            requests_each=max(1, capacity // REQUESTS_SHARE),
            other_dollars_per_hour=sum(e.offer.price_per_hour for e in others),
            spent=self.spent_before + totals_of(state, now).cost,
        )

    def _newest_steps(self, open_requests: int, now: float) -> TrainerSteps | None:
        if not self._steps:
            return None
        newest = self._steps[-1].step
        if open_requests == 0 and now - self._step_at > max(SILENT_S, 3 * newest.lasted_s):
            return None
        return TrainerSteps(
            waited_s=sum(measurement.step.waited_s for measurement in self._steps),
            lasted_s=sum(measurement.step.lasted_s for measurement in self._steps),
            tokens=sum(measurement.tokens for measurement in self._steps),
            engine_s=sum(measurement.engine_s for measurement in self._steps),
            idle_s=sum(measurement.idle_s for measurement in self._steps),
            engine_tokens_per_s=self._steps[-1].engine_tokens_per_s,
            price_per_hour=newest.price_per_hour,
            is_last=newest.is_last,
        )

    def _learn_speeds(self, measured: Mapping[str, list[float]]) -> None:
        for kind, speeds in measured.items():
            if rates := [speed for speed in speeds if speed]:
                self._speeds[kind] = sum(rates) / len(rates)

    def _learn_starts(self, kind_of: Mapping[str, str], now: float) -> None:
        """Note who has come."""
        for kind in self.kinds:
            ready = {engine_id for engine_id, name in kind_of.items() if name == kind.name}
            times = self._asked.setdefault(kind.name, deque())
            for _ in islice(ready - self._ready.get(kind.name, set()), len(times)):
                took_s = min(LONGEST_START_S, max(0.0, now - times.popleft()))
                before = self.start_s.get(kind.name, took_s)
                self.start_s[kind.name] = before + NEWEST * (took_s - before)
            self._ready[kind.name] = ready


def _open_work(state: PoolState, open_requests: int, now: float) -> tuple[float, float | None]:
    """Return the expected tokens of open requests, and the seconds left to the first deadline."""
    stride = max(1, open_requests // SAMPLED)
    opened = (request for request in state.requests.values() if request.is_open)
    sample = list(islice(opened, 0, None, stride))
    if not sample:
        return 0.0, None
    tokens = sum(expected_tokens_left(state, request) for request in sample)
    left_s = min(request.order.deadline for request in sample) - now
    return tokens * open_requests / len(sample), left_s
