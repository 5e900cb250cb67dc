"""Decides again and again how many engines the manager wants, and reports it to whoever starts them.

gauge ─► demand ─► decide_wanted ─► GET /wanted, /status, /metrics, the history, the log
  ▲                                        │
  └── POST /runs/{run}/step (the trainer)  └─► the journal: what the next manager goes on with
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from rl_agent.config.sections.pool_scale import PoolScaleConfig
from rl_agent.pool.demand.demand import WantedRules
from rl_agent.pool.demand.gauge import DemandGauge, TrainerStep
from rl_agent.pool.demand.records import EngineKind, Wanted
from rl_agent.pool.demand.scarcity import FailedStarts, FleetReports
from rl_agent.pool.demand.wanted import WantedMemory, decide_wanted
from rl_agent.pool.runtime.journal import Journal
from rl_agent.pool.runtime.journal_rows import scaling_write
from rl_agent.pool.scheduler.state import PoolState
from rl_agent.pool.schemas import FleetRequest, KeptScaling, KindAnswer, WantedAnswer

log = logging.getLogger(__name__)


def wanted_rules(config: PoolScaleConfig) -> WantedRules:
    """Return the settings as the decision takes them."""
    keys = config.model_dump(exclude={"kinds", "interval_s"})
    return WantedRules(kinds=tuple(EngineKind(**kind.model_dump()) for kind in config.kinds), **keys)


class Scaling:
    """The decisions of one manager."""

    def __init__(
        self,
        config: PoolScaleConfig,
        state: PoolState,
        clock: Callable[[], float],
        journal: Journal | None = None,
        num_unread: Callable[[], int] = lambda: 0,
    ) -> None:
        """`num_unread` returns the number of calls that wait for an engine to read their text."""
        self.rules = wanted_rules(config)
        self.on_changed: Callable[[WantedAnswer], None] = lambda answer: None
        self._interval_s = config.interval_s
        self._state = state
        self._clock = clock
        self._num_unread = num_unread
        self._journal = journal
        self._gauge = DemandGauge(self.rules.kinds)
        self._reports = FleetReports()
        self._memory = WantedMemory()
        self._present: dict[str, int] = {}
        self._spent = 0.0

    def restore(self, kept: KeptScaling) -> None:
        """Go on with what an earlier manager of this journal wanted, had learned and had spent."""
        self._gauge.spent_before = kept.spent
        names = {kind.name for kind in self.rules.kinds}
        self._gauge.start_s = {name: took for name, took in kept.start_s.items() if name in names}
        counts = {name: kept.counts.get(name, 0) for name in names}
        self._memory = WantedMemory(Wanted(counts, "as before the manager was restarted"))

    async def run(self) -> None:
        """Decide every `interval_s` until cancelled; where no kind is known, there is nothing to decide."""
        if not self.rules.kinds:
            return
        while True:
            self.decide()
            if self._journal is not None:
                self._journal.append([scaling_write(self.kept())])
            await asyncio.sleep(self._interval_s)

    def step_ended(self, step: TrainerStep) -> WantedAnswer:
        """Record a step of the trainer, and decide at once."""
        if self.rules.kinds:
            self._gauge.step_ended(self._state, step, self._clock())
            self.decide()
        return self.answer()

    def fleet_reported(self, fleet: str, report: FleetRequest) -> None:
        """Record which kinds the provider of a fleet does not give."""
        now = self._clock()
        failed = {
            kind: FailedStarts(starts.count, now + starts.retry_in_s, starts.joined, starts.starting)
            for kind, starts in report.failed.items()
        }
        self._reports.add(fleet, failed, now)

    def decide(self) -> None:
        """Decide how many are wanted now."""
        now, before = self._clock(), self._memory.wanted
        demand = self._gauge.demand(self._state, now, self._num_unread())
        demand = replace(demand, scarce=self._reports.scarce(now))
        self._memory = decide_wanted(self.rules, self._memory, demand, now)
        self._present = {kind.name: demand.present.get(kind.name, 0) for kind in self.rules.kinds}
        self._spent = demand.spent
        wanted = self._memory.wanted
        assert wanted is not None
        self._gauge.decided(wanted, now)
        if before is None or dict(before.counts) != dict(wanted.counts):
            log.info("%s (%s)", wanted.reason, ", ".join(f"{n} {kind}" for kind, n in wanted.counts.items()))
            self.on_changed(self.answer())

    def answer(self) -> WantedAnswer:
        """Return what is wanted, and what is there."""
        wanted = self._memory.wanted or Wanted({}, "")
        return WantedAnswer(
            counts=dict(wanted.counts),
            present=self._present,
            reason=wanted.reason,
            since=time.time() - (self._clock() - self._memory.since) if wanted.counts else None,
            ceiling=self._memory.ceiling,
            spent=self._spent,
            kinds=[
                KindAnswer(
                    name=kind.name,
                    price_per_hour=kind.price_per_hour,
                    min_engines=kind.min_engines,
                    max_engines=kind.max_engines,
                    start_s=self._gauge.start_s.get(kind.name, kind.start_s),
                )
                for kind in self.rules.kinds
            ],
        )

    def kept(self) -> KeptScaling:
        """Return what a later manager needs."""
        counts = self._memory.wanted.counts if self._memory.wanted else {}
        return KeptScaling(counts=dict(counts), spent=self._spent, start_s=self._gauge.start_s)
