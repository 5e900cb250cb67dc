"""The pool's scheduler in virtual time: a clock that jumps, an agenda, and engines that do as they are told.

    agenda ─► event ─► machine.step ─► Generate, Abort ─► the engine · Probe, Ended, SetAside ─► a subclass

`what-if` puts rented machines around it (`world`); the property tests and benchmarks of the scheduler put
engines around it that make real tokens and misbehave.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, Protocol, TypeVar

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.machine import step
from rl_agent.pool.scheduler.records import PoolRules, Request, RequestId
from rl_agent.pool.scheduler.state import PoolState

MODEL = "model"


class RunsRequests(Protocol):
    """An engine in virtual time."""

    def begin(self, request: Request, attempt: int) -> None: ...
    def abort(self, key: tuple[RequestId, int]) -> None: ...


E = TypeVar("E", bound=RunsRequests)


@dataclass(slots=True, kw_only=True)
class VirtualPool(ABC, Generic[E]):
    """The scheduler and a clock: `at` plans something, `run` lets time pass, `tell` gives an event."""

    rules: PoolRules
    chunk: int
    """Tokens that travel together."""
    now: float = 0.0
    state: PoolState = field(init=False)
    engines: dict[str, E] = field(default_factory=dict)
    """The engines by their ids, oldest first."""
    agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    numbers: "count[int]" = field(default_factory=count)
    _wake: float | None = None

    def __post_init__(self) -> None:
        self.state = PoolState(self.rules)

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.agenda, (when, next(self.numbers), what))

    def run(self, until: float) -> None:
        self.run_while(lambda: self.agenda[0][0] <= until)
        self.now = until

    def run_while(self, goes_on: Callable[[], bool]) -> None:
        """Do what is planned, one after the other, as long as there is something and `goes_on`."""
        while self.agenda and goes_on():
            self.now, _, what = heapq.heappop(self.agenda)
            what()

    def handle(self, event: events.Event) -> None:
        for command in step(self.state, event, self.now):
            self._carry_out(command)
        self._after_step()
        wake = self.state.wake_at()
        if wake is not None and (self._wake is None or wake < self._wake):
            self._wake = wake
            self.at(max(wake, self.now), lambda: self._tick(wake))

    def _tick(self, due: float) -> None:
        if self._wake == due:
            self._wake = None
            self.handle(events.Tick())

    def _carry_out(self, command: events.PoolCommand) -> None:
        if isinstance(command, events.Generate) and (engine := self.engines.get(command.engine_id)):
            engine.begin(self.state.requests[command.request_id], command.attempt)
        elif isinstance(command, events.Abort) and (engine := self.engines.get(command.engine_id)):
            engine.abort((command.request_id, command.attempt))
        elif isinstance(command, events.ProbeEngine):
            self._probe(command.engine_id)
        elif isinstance(command, events.Ended):
            self._on_ended(self.state.requests[command.request_id])
        elif isinstance(command, events.Moved):
            self._on_moved(command)
        elif isinstance(command, events.SetAside):
            self._on_set_aside(command.reason)

    def _after_step(self) -> None:
        """Look at the state after each event; for subclasses."""

    @abstractmethod
    def _probe(self, engine_id: str) -> None:
        """Ask an engine how it is, and tell the answer."""

    @abstractmethod
    def _on_ended(self, request: Request) -> None:
        """Take note that a request has ended."""

    def _on_moved(self, move: events.Moved) -> None:
        """Take note that a request goes on at another engine; for subclasses."""

    def _on_set_aside(self, words: str) -> None:
        """Take note of an event that the scheduler could not handle; for subclasses."""
