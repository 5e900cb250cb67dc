"""Machines that are asked for, in virtual time: as many as `wanted` says and a trace has.

    trace ─► places where a machine can be had ─┐
                     decide_wanted ─► wanted ───┴─► rent, give back ─► RentedPool ─► engines ─► gauge ─┐
                  ▲                                                                                      │
                  └──────────────────────────── demand, each step's waiting ◄────────────────────────────┘

A place is lost with its machine, without a notice where the trace says so; which free place a machine gets is
drawn. A machine is paid from the moment it is asked for.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from rl_agent.pool.demand.demand import WantedRules
from rl_agent.pool.demand.gauge import DemandGauge, TrainerStep
from rl_agent.pool.demand.wanted import WantedMemory, decide_wanted
from rl_agent.simulation.speeds import EngineSpeed
from rl_agent.simulation.spot import Change
from rl_agent.simulation.world import RentedPool

if TYPE_CHECKING:
    from rl_agent.simulation.loop import Loop

LOOK_S = 15.0
"""The time between two decisions."""


@dataclass(slots=True)
class VirtualFleet:
    """Keeps as many machines as are wanted, where places allow; `begin` starts it."""

    world: RentedPool
    speed: EngineSpeed
    kind: str
    wanted: int
    seed: int
    _places: deque[int] = field(default_factory=deque)
    """The places where a machine can be had now, oldest first."""
    _rented: dict[int, str] = field(default_factory=dict)
    """Names of machines by their places."""
    _numbers: "count[int]" = field(default_factory=count)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(f"places:{self.seed}")

    def begin(self, trace: tuple[Change, ...]) -> None:
        for number, change in enumerate(trace):
            if change.is_join:
                self.world.at(change.at_s, partial(self._place_comes, number))
            else:
                self.world.at(change.at_s, partial(self._place_goes, with_notice=change.with_notice))

    def want(self, number: int) -> None:
        self.wanted = number
        self._reconcile()

    def _place_comes(self, number: int) -> None:
        self._places.append(number)
        self._reconcile()

    def _place_goes(self, *, with_notice: bool) -> None:
        place = self._places.popleft()
        if (name := self._rented.pop(place, None)) is not None:
            self.world.lose(name, with_notice=with_notice)
        self._reconcile()

    def _reconcile(self) -> None:
        while len(self._rented) > self.wanted:
            place = next(reversed(self._rented))  # the newest: it may not even serve yet
            self.world.lose(self._rented.pop(place), with_notice=True)
        free = [place for place in self._places if place not in self._rented]
        while len(self._rented) < self.wanted and free:
            place = free.pop(self._random.randrange(len(free)))
            name = f"rented-{next(self._numbers)}"
            self._rented[place] = name
            self.world.rent(name, self.speed, self.kind)


@dataclass(slots=True)
class AutoscaledFleet:
    """Decides by the very function that a manager decides by."""

    fleet: VirtualFleet
    rules: WantedRules
    loop: "Loop"
    trainer_price: float
    on_changed: Callable[[float, str], None] = lambda now, reason: None
    is_last: Callable[[], bool] = lambda: False
    _gauge: DemandGauge = field(init=False)
    _memory: WantedMemory = field(default_factory=WantedMemory)
    _step_at: float = 0.0
    _waited_s: float = 0.0

    def begin(self) -> None:
        self._gauge = DemandGauge(self.rules.kinds)
        self._look()

    def iteration_ended(self) -> None:
        """Report how long the trainer waited in the iteration, as the trainer does."""
        now, waited_s = self.fleet.world.now, self.loop.waiting_s
        step = TrainerStep(
            waited_s - self._waited_s,
            max(now - self._step_at, 1e-9),
            steps_together=1 + self.loop.max_staleness,
            price_per_hour=self.trainer_price,
            is_last=self.is_last(),
        )
        self._step_at, self._waited_s = now, waited_s
        self._gauge.step_ended(self.fleet.world.state, step, now)
        self._decide()

    def _look(self) -> None:
        self._decide()
        self.fleet.world.at(self.fleet.world.now + LOOK_S, self._look)

    def _decide(self) -> None:
        world, before = self.fleet.world, self._memory.wanted
        demand = self._gauge.demand(world.state, world.now)
        self._memory = decide_wanted(self.rules, self._memory, demand, world.now)
        decision = self._memory.wanted
        assert decision is not None
        self._gauge.decided(decision, world.now)
        if before is None or before.counts != decision.counts:
            self.on_changed(world.now, decision.reason)
            self.fleet.want(decision.counts[self.fleet.kind])
