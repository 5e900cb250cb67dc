"""Engines that make real tokens, around the pool's scheduler in virtual time: for property tests, benchmarks.

An engine decodes in steps: each gives one token to every request that runs. A step lasts 1 / `speed`
seconds while at most `batch` requests run, and proportionally longer above that. What a response says
depends on its prompt and position only, so that it must come out the same however often it was moved.
Prompts are (length of the response, seed, filler…).
"""

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.machine import check
from rl_agent.pool.scheduler.migration import prompt_of, tokens_left
from rl_agent.pool.scheduler.policies import LeastWork
from rl_agent.pool.scheduler.records import (
    Engine,
    EngineOffer,
    EngineState,
    Order,
    PoolRules,
    Request,
    RequestId,
)
from rl_agent.pool.scheduler.reports import WeightsReport
from rl_agent.simulation.virtual_pool import MODEL, VirtualPool

EOS = 2
RULES = PoolRules(
    lease_s=5.0,
    probe_interval_s=1.0,
    start_timeout_s=300.0,
    stall_timeout_s=30.0,
    engine_deaths_limit=3,
    min_progress_tokens=8,
    max_broken_attempts=5,
    policy=LeastWork,
    affinity_slack=4.0,
    rebalance_interval_s=1.0,
    rebalance_gain_s=0.5,
    weights_timeout_s=60.0,
    max_versions_behind=4,
    stream_interval=4,
    stream_interval_s=5.0,
)


def truth(prompt: tuple[int, ...]) -> list[int]:
    """The whole response to a prompt; its last token ends the turn."""
    length, seed = prompt[0], prompt[1]
    return [10 + (seed * 7919 + position * 104729) % 1000 for position in range(length - 1)] + [EOS]


@dataclass(slots=True)
class Attempt:
    request: Request
    number: int
    rest: list[int]
    """Tokens still to come, last one first."""
    limit: int
    began: float
    sent: int = 0


def id_of(name: str, run: str = "run") -> RequestId:
    return RequestId(run, name)


@dataclass(slots=True, kw_only=True)
class World(VirtualPool["WorldEngine"]):
    """The virtual pool with all that happened in it, checked after each step."""

    rules: PoolRules = RULES
    chunk: int = 4
    poison: frozenset[int] = frozenset()
    """Seeds of prompts that kill the engine at the given position of the response."""
    poison_position: int = 0
    is_checking: bool = True
    ended: Counter[RequestId] = field(default_factory=Counter)
    """The number of times the end of each request was announced."""
    ended_at: dict[RequestId, float] = field(default_factory=dict)
    moved: list[events.Moved] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    may_set_aside: bool = False
    decisions: int = 0

    def run_until_all_ended(self, limit_s: float) -> None:
        self.run_while(lambda: self.open_requests() > 0 and self.now < limit_s)

    def run_to_a_right_end(self, limit_s: float) -> None:
        self.run_until_all_ended(limit_s)
        self.assert_all_right()

    def open_requests(self) -> int:
        account = self.state.account
        return account.submitted - account.completed - account.failed

    def _after_step(self) -> None:
        self.decisions += 1
        if self.is_checking:
            check(self.state)
            assert self.may_set_aside or not self.set_aside

    def _probe(self, engine_id: str) -> None:
        engine = self.engines[engine_id]
        self.at(self.now + engine.start_s, engine.answer_probe)

    def _on_ended(self, request: Request) -> None:
        self.ended[request.request_id] += 1
        self.ended_at[request.request_id] = self.now

    def _on_moved(self, move: events.Moved) -> None:
        self.moved.append(move)

    def _on_set_aside(self, words: str) -> None:
        self.set_aside.append(words)

    def join(self, name: str, **behaviour: Any) -> "WorldEngine":
        engine = WorldEngine(self, name, f"{name}#{next(self.numbers)}", **behaviour)
        self.engines[engine.engine_id] = engine
        offer = EngineOffer(engine.engine_id, name, int(engine.capacity), engine.price)
        self.handle(events.Registered(offer))
        engine.beat()
        return engine

    def submit(self, name: str, length: int, *, max_tokens: int = 4096, seed: int = 0, **more: Any) -> None:
        prompt = (length, seed, 5, 6)
        deadline, run = self.now + more.pop("deadline_s", 1e6), more.pop("run", "run")
        params = {"temperature": 0.0, "eos_token_ids": [EOS], **more.pop("params", {})}
        order = Order(id_of(name, run), prompt, max_tokens, params, deadline, **more)
        self.handle(events.Submitted(order))

    def request(self, name: str, run: str = "run") -> Request:
        return self.state.requests[id_of(name, run)]

    def attempts_at(self, engine: "WorldEngine") -> list[str]:
        """The names of the requests that run there."""
        return [request_id.name for request_id, _ in engine.attempts]

    def assert_all_right(self) -> None:
        """Every request ended once, and what completed is the whole truth."""
        check(self.state)
        for request_id, request in self.state.requests.items():
            assert not request.is_open, request
            assert self.ended[request_id] == 1
            if not request.failure:
                order = request.order
                assert list(request.token_ids) == truth(order.prompt_token_ids)[: order.max_tokens]


@dataclass(slots=True)
class WorldEngine:
    world: World
    name: str
    engine_id: str
    speed: float = 50.0
    batch: float = 16
    capacity: float = 64
    price: float = 0.0
    start_s: float = 0.1
    model: str = MODEL
    is_alive: bool = True
    is_stopped: bool = False
    is_stepping: bool = False
    is_deaf: bool = False
    """It samples, and does not answer when it is asked how it is."""
    beats: bool = True
    attempts: dict[tuple[RequestId, int], Attempt] = field(default_factory=dict)
    sampled: int = 0
    lost: float = 0.0
    """Tokens sampled for chunks that were never sent."""
    step_began: float = 0.0
    random_: random.Random | None = None
    """Duplicates and delays what it sends, if given."""

    def begin(self, request: Request, attempt: int) -> None:
        context = prompt_of(request)
        count = len(context) - 4
        whole = truth(request.order.prompt_token_ids)
        assert context[4:] == whole[:count], "continued from tokens that were never sampled"
        assert count < len(whole), "asked to go on past the end"
        limit = tokens_left(request, 0)
        rest = whole[count:][::-1]
        self.attempts[request.request_id, attempt] = Attempt(request, attempt, rest, limit, self.world.now)
        self._step_later()

    def abort(self, key: tuple[RequestId, int]) -> None:
        attempt = self.attempts.get(key)
        if attempt is not None and self.is_stepping:
            since = max(self.step_began, attempt.began)
            self.lost += (self.world.now - since) / self._step_s() * self.world.chunk
        self.attempts.pop(key, None)

    def _step_later(self) -> None:
        if not self.is_stepping and self.attempts and self.is_alive:
            self.is_stepping, self.step_began = True, self.world.now
            self.world.at(self.world.now + self._step_s(), self._step)

    def _step_s(self) -> float:
        return self.world.chunk * max(1.0, len(self.attempts) / self.batch) / self.speed

    def _step(self) -> None:
        self.is_stepping = False
        if self.is_stopped or not self.is_alive:
            return
        for key, attempt in list(self.attempts.items()):
            if key in self.attempts and self.is_alive:
                self._advance(key, attempt)
        self._step_later()

    def _advance(self, key: tuple[RequestId, int], attempt: Attempt) -> None:
        world, prompt = self.world, attempt.request.order.prompt_token_ids
        position = prompt[0] - len(attempt.rest)
        if prompt[1] in world.poison and position + world.chunk > world.poison_position:
            self.die()
            return
        size = min(world.chunk, len(attempt.rest), attempt.limit - attempt.sent)
        tokens = tuple(attempt.rest.pop() for _ in range(size))
        attempt.sent += size
        self.sampled += size
        finish = "stop" if not attempt.rest else "length" if attempt.sent == attempt.limit else None
        if finish:
            del self.attempts[key]
        self._send(events.Progress(key[0], key[1], tokens, (-0.5,) * size, finish_reason=finish))

    def _send(self, message: events.Event) -> None:
        self.world.handle(message)
        if self.random_ and self.random_.random() < 0.05:
            late_s = self.random_.uniform(5, 20)
            if isinstance(message, events.Progress) and message.finish_reason:
                self.world.at(self.world.now + late_s, lambda: self.world.handle(message))

    def beat(self) -> None:
        if not self.is_alive:
            return
        if self.beats:
            problem = "no answer to /health" if self.is_stopped or self.is_deaf else ""
            self.world.handle(events.Beat(self.engine_id, problem=problem))
        self.world.at(self.world.now + 1.0, self.beat)

    def load_wanted(self) -> None:
        """Its worker has fetched and loaded what the pool wants."""
        weights = self.world.state.weights
        if weights is not None and self.is_alive:
            self.report(WeightsReport(weights.weight_version, weights.digest, f"tcp://{self.name}:1"))

    def fetch_wanted(self) -> None:
        """Its worker has fetched what the pool wants, and waits until the engine may load it."""
        weights = self.world.state.weights
        if weights is not None and self.is_alive:
            held = self.world.state.engines[self.engine_id].weights
            self.report(replace(held, fetched_version=weights.weight_version))

    def report(self, weights: WeightsReport) -> None:
        self.world.handle(events.Beat(self.engine_id, weights=weights))

    def answer_probe(self) -> None:
        if self.is_alive and not self.is_stopped and not self.is_deaf:
            self.world.handle(events.Probed(self.engine_id, self.model, 0))
        else:
            problem = "no answer to /health" if self.is_alive else "connection refused"
            self.world.handle(events.ProbeFailed(self.engine_id, problem))

    def die(self, *, silently: bool = False) -> None:
        """Die: without `silently` the connections break at once; else only the lease tells."""
        self.is_alive = False
        attempts = list(self.attempts)
        self.attempts.clear()
        if not silently:
            for request_id, attempt in attempts:
                self.world.handle(events.Broken(request_id, attempt, "connection reset"))

    def crash(self) -> None:
        """The process ends and its worker says so."""
        self.is_alive = False
        self.world.handle(events.EngineEnded(self.engine_id, "its process ended", is_crash=True))

    @property
    def is_ready(self) -> bool:
        engine = self.world.state.engines.get(self.engine_id)
        return engine is not None and engine.state is EngineState.READY


def ready_world(*names: str, rules: PoolRules = RULES, **behaviour: Any) -> tuple[World, list[WorldEngine]]:
    """A world in which these engines have joined."""
    world = World(rules=rules)
    engines = [world.join(name, **behaviour) for name in names]
    world.run(1.0)
    return world, engines


def record(world: World, engine: WorldEngine) -> Engine:
    """Return the pool's record of an engine."""
    return world.state.engines[engine.engine_id]


def state_of(world: World, engine: WorldEngine) -> EngineState:
    registered = world.state.engines.get(engine.engine_id)
    return registered.state if registered else EngineState.GONE
