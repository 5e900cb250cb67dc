"""Placement: the engine that a request is sent to.

The engine with the lowest rank among those that can take it: its score by the policy (see `policies`), then
that of least_work. The score of an engine alone changes only when the engine gains or loses a request, so the
engines stand in a heap in which stale entries are skipped; a policy that looks at requests scores them all.

A class of the user's may fail. An engine for which it raises or returns no number ranks after those that it
can score, by least_work; each failure is counted in `fallbacks`. The class runs in the scheduler's thread:
while it does not return, the pool stands still.
"""

import heapq
import math
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from rl_agent.pool.scheduler.policies import (
    EngineView,
    LeastWork,
    PolicyFault,
    RequestView,
    looks_at_requests,
    number_from,
)
from rl_agent.pool.scheduler.records import Engine, EngineState, PoolRules

UNKNOWN_SPEED = 1.0
FEW_TOKENS = 8
"""The tokens at a time where somebody reads along or a request is on trial."""
USUAL_TOKENS = 32
"""The tokens at a time from an engine whose speed is not known yet."""
OPTIMISM = 1.5
UNKNOWN = math.inf
"""Score of an engine that the policy cannot score."""

Rank = tuple[float, float]
"""Score by the policy, then by least_work."""
_FALLBACK = LeastWork()


class Placement:
    """The engines that can take a request, best first."""

    def __init__(self, rules: PoolRules, engines: dict[str, Engine]) -> None:
        self._slack = rules.affinity_slack
        self._engines = engines
        self._policy: Any = rules.policy()
        self.looks_at_requests = looks_at_requests(self._policy)
        self._heap: list[tuple[Rank, int, str]] = []
        self._current: dict[str, tuple[Rank, int]] = {}
        self._stamps = count()
        self._picks = count(1)
        self._known_speed = 0.0
        self.fallbacks = 0
        """The number of times the policy raised or returned no number."""
        self.fault = ""
        """The reason of the last failure."""

    def changed(self, engine: Engine, now: float) -> None:
        """Update the place of an engine whose requests or state changed."""
        if can_take(engine, now):
            rank, stamp = self._rank(engine), next(self._stamps)
            self._current[engine.engine_id] = (rank, stamp)
            heapq.heappush(self._heap, (rank, stamp, engine.engine_id))
        else:
            self._current.pop(engine.engine_id, None)

    def best(self) -> Engine | None:
        """Return the best engine for any request; by least_work where the policy looks at requests."""
        while self._heap:
            rank, stamp, engine_id = self._heap[0]
            if self._current.get(engine_id) == (rank, stamp):
                return self._engines[engine_id]
            heapq.heappop(self._heap)
        return None

    def able(self) -> list[Engine]:
        """Return every engine that can take a request."""
        return [self._engines[engine_id] for engine_id in self._current]

    def in_order(self) -> list[Engine]:
        """Return every engine that can take a request, in the order of `best`."""
        return [
            self._engines[engine_id] for engine_id in sorted(self._current, key=self._current.__getitem__)
        ]

    def choose(self, request: RequestView, engines: Iterable[Engine]) -> Engine:
        """Return the best of some engines, one at least, for a request."""
        ranked = {engine.engine_id: self._rank_for(engine, request) for engine in engines}
        return self._engines[min(ranked, key=ranked.__getitem__)]

    def picked(self, engine: Engine) -> None:
        engine.last_pick = next(self._picks)

    def learn_speed(self, tokens_per_s: float) -> None:
        """Update the average speed, which an engine that was not measured yet is assumed to have."""
        self._known_speed = (
            0.9 * self._known_speed + 0.1 * tokens_per_s if self._known_speed else tokens_per_s
        )

    def is_near_best(self, engine: Engine, best: Engine, request: RequestView) -> bool:
        """Return whether a sibling at `engine` waits no longer than `affinity_slack` responses take."""
        cost_of = getattr(self._policy, "response_cost", None)
        if cost_of is None:
            return False
        (near, _), (lowest, _) = self._rank_for(engine, request), self._rank_for(best, request)
        cost = self._number(cost_of, self._view(engine), request)
        return near - lowest <= self._slack * cost * (1 + 1e-9) if cost != UNKNOWN else False

    def speed(self, engine: Engine) -> float:
        return engine.tokens_per_s or self._known_speed or UNKNOWN_SPEED

    def _rank_for(self, engine: Engine, request: RequestView) -> Rank:
        if self.looks_at_requests:
            return self._rank(engine, request)
        entry = self._current.get(engine.engine_id)
        return self._rank(engine) if entry is None else entry[0]

    def _rank(self, engine: Engine, *request: RequestView) -> Rank:
        view, score = self._view(engine), UNKNOWN
        if len(request) == self.looks_at_requests:
            score = self._number(self._policy.score, view, *request)
        return score, _FALLBACK.score(view)

    def _number(self, method: Callable[..., Any], *values: EngineView | RequestView) -> float:
        """Return what a method of the policy returns; `UNKNOWN` if that is not a number."""
        try:
            return number_from(method, *values)
        except PolicyFault as fault:
            self.fallbacks += 1
            self.fault = str(fault)
        return UNKNOWN

    def _view(self, engine: Engine) -> EngineView:
        offer, load = engine.offer, engine.load
        return EngineView(
            offer.engine_id,
            offer.name,
            offer.kind,
            offer.price_per_hour,
            offer.capacity,
            len(engine.running),
            engine.work,
            load.waiting if load else 0,
            load.kv_use if load else 0.0,
            self.speed(engine),
            engine.request_tokens_per_s,
            engine.weight_version,
            engine.last_pick,
        )


def can_take(engine: Engine, now: float) -> bool:
    return can_finish(engine, now) and engine.finishing_since is None


def can_finish(engine: Engine, now: float) -> bool:
    """Return whether an engine can take a request that its weights have begun."""
    is_ready = engine.state is EngineState.READY and not engine.is_doubted
    return is_ready and engine.has_room and engine.ready_after <= now


def predicted_rate(engine: Engine, requests: int) -> float:
    """Return the tokens per second of one request among `requests`; 0 if the engine was never measured.

    One request alone cannot be faster than the fastest seen, all together not faster than the best total.
    """
    if not engine.request_tokens_per_s:
        return 0.0
    return min(engine.request_tokens_per_s, engine.tokens_per_s / max(1, requests))


def stream_interval(rules: PoolRules, engine: Engine, requests: int) -> int:
    """Tokens that the engine, among so many requests, is to send together: each sending costs it and the
    manager time, and a death all that was not sent."""
    rate = predicted_rate(engine, requests)
    return max(1, min(rules.stream_interval, int(rate * rules.stream_interval_s) or USUAL_TOKENS))
