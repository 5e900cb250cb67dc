"""Engines on the trainer's own devices, in virtual time: they generate while the trainer does not train.

    iteration ─► open ─(switch)─► the engines join the pool ─► close ─(switch)─► the trainer trains
                                                                 └─ what was not finished goes on elsewhere

When the window opens and closes is decided by the controller of `trainer.placement`.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from rl_agent.pool.scheduler.records import Engine, EngineState
from rl_agent.simulation.engine import VirtualEngine
from rl_agent.simulation.loop import Loop
from rl_agent.simulation.speeds import EngineSpeed
from rl_agent.simulation.world import RentedPool

if TYPE_CHECKING:
    from rl_agent.trainer.grpo.gpu_sharing.window import LearntWindow

LOOK_S = 2.0
"""The time between two looks at the pool."""
_PREFIX = "shared-"


@dataclass(slots=True)
class SharedEngines:
    """The engines on the trainer's devices: `begin`, then `begin_iteration` with each further one."""

    placement: Literal["colocated", "hybrid"]
    loop: Loop
    world: RentedPool
    speed: EngineSpeed
    count: int
    switch_s: float
    is_open: bool = False
    opened_at: float = 0.0
    known: "dict[int, LearntWindow]" = field(default_factory=dict)
    """The controller's knowledge about the length of windows."""
    _trains_from: float = 0.0
    _waited_s: float = 0.0
    """The time that the trainer waited in this iteration, its window being closed."""
    _idle_at_first: dict[str, float] = field(default_factory=dict)
    _engines: list[VirtualEngine] = field(default_factory=list)

    def begin(self) -> None:
        self.begin_iteration()
        self.world.at(self.world.now + LOOK_S, self._look)

    def begin_iteration(self) -> None:
        if self.placement == "hybrid":
            self._learn()
        self._decide(is_beginning=True)

    def are_generating(self) -> bool:
        """Return whether the trainer cannot train now."""
        self._decide(is_beginning=False)
        return self.is_open or self.world.now < self._trains_from

    def _look(self) -> None:
        is_training_time = not self.is_open and self.world.now >= self._trains_from
        if is_training_time and self.loop.is_waiting and self.loop.groups_to_come:
            self._waited_s += LOOK_S
        self._decide(is_beginning=False)
        self.loop.train()
        self.world.at(self.world.now + LOOK_S, self._look)

    def _decide(self, *, is_beginning: bool) -> None:
        is_wanted = self.loop.groups_to_come > 0 and self._is_to_be_open(is_beginning)
        if is_wanted and not self.is_open and self.loop.is_waiting:
            self.is_open, self.opened_at = True, self.world.now
            self.world.at(self.world.now + self.switch_s, partial(self._join, self.opened_at))
        elif self.is_open and not is_wanted:
            self._close()

    def _is_to_be_open(self, is_beginning: bool) -> bool:
        from rl_agent.trainer.grpo.gpu_sharing.window import WindowState, is_to_be_open, window_for

        state = self.world.state
        oldest = state.weight_version - self.loop.max_staleness
        others = sum(engine.weight_version >= oldest for engine in self._others())
        seen = WindowState(
            self.world.now - self.opened_at if self.is_open else 0.0,
            self.loop.groups_ready,
            others,
            has_work=not self._engines or any(engine.attempts for engine in self._engines),
        )
        length_s = window_for(self.known, others).length_s
        is_open = self.is_open or is_beginning
        return is_to_be_open(self.placement, seen, is_open=is_open, length_s=length_s)

    def _others(self) -> list[Engine]:
        """Other engines, whatever version they serve."""
        ready = self.world.state.living(EngineState.READY)
        return [engine for engine in ready if not engine.offer.name.startswith(_PREFIX)]

    def _learn(self) -> None:
        """Learn, when an iteration begins, from the idle time that the one before caused."""
        from rl_agent.trainer.grpo.gpu_sharing.window import Waits, learn

        idle_now = {engine.engine_id: self._idle_s(engine) for engine in self._others()}
        idle = [idle_now[name] - since for name, since in self._idle_at_first.items() if name in idle_now]
        if idle:
            self.known = learn(self.known, len(idle), Waits(self._waited_s, sum(idle) / len(idle)))
        self._waited_s, self._idle_at_first = 0.0, idle_now

    def _idle_s(self, engine: Engine) -> float:
        since = engine.idle_since
        return engine.idle_s + (0.0 if since is None else self.world.now - since)

    def _join(self, opened_at: float) -> None:
        if not self.is_open or opened_at != self.opened_at:
            return
        self._engines = [
            self.world.join(f"{_PREFIX}{number}", self.speed, weight_version=self.loop.version)
            for number in range(self.count)
        ]

    def _close(self) -> None:
        self.is_open = False
        self._trains_from = self.world.now + self.switch_s
        engines, self._engines = self._engines, []
        for engine in engines:
            self.world.drain(engine)
        self.world.at(self._trains_from, self.loop.train)
