"""The pool in virtual time on rented machines: they come and go, and their engines fetch weights.

    availability ─► join, leave ─► VirtualEngine ─┐
                                                  ├─► machine.step ─► Generate, Abort, Probe, Ended
    trainer ─► submit, publish ───────────────────┘

The machine is the very one that runs in a manager. What is left out is the network: what an engine sends is
there at once, and only a machine that vanishes is found out late, when its lease is over.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.records import EngineOffer, Order, Request, RequestId, Weights
from rl_agent.pool.scheduler.reports import NO_WEIGHTS, WeightsReport
from rl_agent.pool.scheduler.state import totals_of
from rl_agent.simulation.engine import VirtualEngine
from rl_agent.simulation.speeds import EngineSpeed
from rl_agent.simulation.virtual_pool import MODEL, VirtualPool

BEAT_SHARE = 0.8
"""The share of a lease between two heartbeats of an engine that has nothing to report."""
JUST_BEFORE_S = 1e-3
"""The machine hears of tokens before it learns speeds from them and moves requests."""


@dataclass(slots=True, kw_only=True)
class RentedPool(VirtualPool[VirtualEngine]):
    """The pool on rented machines; tokens are counted in chunks, and an engine that is gone is forgotten."""

    on_ended: Callable[[Request], None]
    price_per_hour: float = 0.0
    """The price of a rented machine."""
    machines: deque[str] = field(default_factory=deque)
    """Names of rented machines that are there, oldest first."""
    sampled: float = 0.0
    """The tokens sampled by engines that are gone."""
    machine_s: float = 0.0
    """The machine time of rented machines that are gone."""
    _joined: dict[str, float] = field(default_factory=dict)
    _lengths: dict[RequestId, int] = field(default_factory=dict)
    _measured_at: float = -1.0

    def __post_init__(self) -> None:
        VirtualPool.__post_init__(self)
        self.handle(events.ModelWanted(MODEL, 0))

    # What happens from outside

    def submit(self, order: Order, length: int) -> None:
        self._lengths[order.request_id] = length
        self.handle(events.Submitted(order))

    def forget(self, request_ids: tuple[RequestId, ...]) -> None:
        for request_id in request_ids:
            del self._lengths[request_id]
        self.handle(events.Forgotten(request_ids))

    def publish(self, weight_version: int) -> None:
        """Engines fetch it while they go on; those that share the trainer's devices have it already."""
        self.handle(
            events.WeightsWanted(Weights(weight_version, _digest(weight_version), (), "", weight_version))
        )
        for engine in list(self.engines.values()):
            self._fetch(engine)

    def rent(self, name: str, speed: EngineSpeed, kind: str = "") -> None:
        """A machine that is paid from now on, and whose engine answers when it has started."""
        self.machines.append(name)
        self._joined[name] = self.now
        self.at(self.now + speed.start_s, lambda: self._started(name, speed, kind))

    def lose(self, name: str | None = None, *, with_notice: bool) -> None:
        """Take a machine away, the oldest if none is named: told before, or from one moment to the next."""
        name = self.machines[0] if name is None else name
        self.machines.remove(name)
        self.machine_s += self.now - self._joined.pop(name)
        engine = self.engine_named(name)
        if engine is None:
            return
        engine.send()
        if with_notice:
            self.drain(engine)
        else:
            self.handle(events.Beat(engine.engine_id))  # its last one was not long ago
            self._gone(engine)

    def join(
        self, name: str, speed: EngineSpeed, *, weight_version: int, kind: str = "", price: float = 0.0
    ) -> VirtualEngine:
        """Return an engine that serves this version from now on."""
        engine_id = f"{name}#{next(self.numbers)}"
        engine = VirtualEngine(self, name, engine_id, speed, weight_version, self._length_of)
        self.engines[engine_id] = engine
        report = WeightsReport(weight_version, _digest(weight_version)) if weight_version else NO_WEIGHTS
        self.handle(events.Registered(EngineOffer(engine_id, name, speed.capacity, price, kind), report))
        self._beat(engine)
        self._fetch(engine)
        return engine

    def drain(self, engine: VirtualEngine) -> None:
        """Its requests go on elsewhere with all that was sampled, as at the end of a chunk."""
        engine.send()
        self.handle(events.DrainAsked(engine.engine_id, self.now, "it is told to leave"))
        self._gone(engine)

    # What was made of it

    def machine_hours(self) -> float:
        """Return the hours of rented machines, up to now."""
        return (self.machine_s + sum(self.now - since for since in self._joined.values())) / 3600

    def sampled_tokens(self) -> float:
        """Return the tokens that all engines sampled, whatever became of them."""
        running = sum(
            engine.sampled + sum(min(a.length, engine.count - a.began) for a in engine.attempts.values())
            for engine in self.engines.values()
        )
        return (self.sampled + running) * self.chunk

    def kept_tokens(self) -> int:
        """Return the tokens that the pool has of requests, whether they have ended or not."""
        totals = totals_of(self.state, self.now)
        return totals.useful_tokens * self.chunk

    def prefilled_again_tokens(self) -> int:
        return totals_of(self.state, self.now).prefilled_again_tokens * self.chunk

    def idle_share(self) -> float:
        """Return the share of the engines' time in which they were ready and had no request."""
        totals = totals_of(self.state, self.now)
        return totals.idle_s / totals.up_s if totals.up_s else 0.0

    def engine_named(self, name: str) -> VirtualEngine | None:
        return next((engine for engine in self.engines.values() if engine.name == name), None)

    # The machine and its engines

    def _after_step(self) -> None:
        if self.state.is_measuring and self._measured_at != self.state.measured_at:
            self._measured_at = self.state.measured_at
            self.at(self._measured_at + self.rules.rebalance_interval_s - JUST_BEFORE_S, self._send_all)

    def _on_ended(self, request: Request) -> None:
        self.at(self.now, lambda: self.on_ended(request))

    def _probe(self, engine_id: str) -> None:
        def answer() -> None:
            is_there = engine_id in self.engines
            failed = events.ProbeFailed(engine_id, "does not answer")
            self.handle(events.Probed(engine_id, MODEL, 0) if is_there else failed)

        self.at(self.now, answer)

    def _started(self, name: str, speed: EngineSpeed, kind: str) -> None:
        if name in self._joined:
            self.join(name, speed, weight_version=0, kind=kind, price=self.price_per_hour)

    def _fetch(self, engine: VirtualEngine) -> None:
        weights = self.state.weights
        if weights is None or engine.weight_version >= weights.weight_version or not engine.is_alive:
            return
        self.at(self.now + engine.speed.fetch_s, lambda: self._load(engine, weights.weight_version))

    def _load(self, engine: VirtualEngine, weight_version: int) -> None:
        if not engine.is_alive or engine.weight_version >= weight_version:
            return
        engine.send()
        engine.stall(engine.speed.pause_s)
        self.at(self.now + engine.speed.pause_s, lambda: self._loaded(engine, weight_version))

    def _loaded(self, engine: VirtualEngine, weight_version: int) -> None:
        if engine.is_alive and engine.weight_version < weight_version:
            engine.send()
            engine.report(weight_version, _digest(weight_version))
            self._fetch(engine)

    def _gone(self, engine: VirtualEngine) -> None:
        engine.end()
        self.sampled += engine.sampled
        del self.engines[engine.engine_id]

    def _beat(self, engine: VirtualEngine) -> None:
        if engine.is_alive:
            self.handle(events.Beat(engine.engine_id))
            self.at(self.now + BEAT_SHARE * self.rules.lease_s, lambda: self._beat(engine))

    def _send_all(self) -> None:
        for engine in list(self.engines.values()):
            engine.send()

    def _length_of(self, request: Request) -> int:
        return self._lengths[request.request_id]


def _digest(weight_version: int) -> str:
    return f"version-{weight_version}"
