"""Placement: the engine that a request is sent to.

Placement takes the engine with the lowest key among those with room:
    least_work    seconds until it has done what it has: expected tokens left / measured tokens per second
    least_loaded  share of its places that are taken
    round_robin   the one that was picked longest ago
An engine's key changes only when it gains or loses a request, so the engines stand in a heap in which stale
entries are skipped: a decision costs the logarithm of the number of engines.
"""

import heapq
from collections.abc import Iterator
from itertools import count

from rl_agent.pool.scheduler.records import Engine, EngineState, PoolRules

UNKNOWN_SPEED = 1.0
FEW_TOKENS = 8
"""At a time, where somebody reads along or a request is on trial."""
USUAL_TOKENS = 32
"""At a time from an engine whose speed is not known yet."""
OPTIMISM = 1.5


class Placement:
    """The engines that can take a request, best first."""

    def __init__(self, rules: PoolRules, engines: dict[str, Engine]) -> None:
        self._rules = rules
        self._engines = engines
        self._heap: list[tuple[float, int, str]] = []
        self._current: dict[str, int] = {}
        self._stamps = count()
        self._picks = count(1)
        self._known_speed = 0.0

    def changed(self, engine: Engine, now: float) -> None:
        """Update the place of an engine whose requests or state changed."""
        if not can_take(engine, now):
            self._current.pop(engine.engine_id, None)
            return
        stamp = next(self._stamps)
        self._current[engine.engine_id] = stamp
        heapq.heappush(self._heap, (self._key(engine), stamp, engine.engine_id))

    def best(self) -> Engine | None:
        while self._heap:
            _, stamp, engine_id = self._heap[0]
            if self._current.get(engine_id) == stamp:
                return self._engines[engine_id]
            heapq.heappop(self._heap)
        return None

    def in_order(self) -> Iterator[Engine]:
        """Yield every engine that can take a request, best first."""
        yield from sorted((self._engines[engine_id] for engine_id in self._current), key=self._key)

    def picked(self, engine: Engine) -> None:
        engine.last_pick = next(self._picks)

    def learn_speed(self, tokens_per_s: float) -> None:
        """Update the average speed, which an engine that was not measured yet is assumed to have."""
        self._known_speed = (
            0.9 * self._known_speed + 0.1 * tokens_per_s if self._known_speed else tokens_per_s
        )

    def is_near_best(self, engine: Engine, best: Engine, expected: float) -> bool:
        """Return whether a sibling at `engine` waits no longer than `affinity_slack` responses take."""
        if self._rules.policy == "round_robin":
            return False
        if self._rules.policy == "least_loaded":
            return len(engine.running) - len(best.running) <= self._rules.affinity_slack
        delay = self._key(engine) - self._key(best)
        return delay * self.speed(engine) <= self._rules.affinity_slack * expected

    def speed(self, engine: Engine) -> float:
        return engine.tokens_per_s or self._known_speed or UNKNOWN_SPEED

    def _key(self, engine: Engine) -> float:
        if self._rules.policy == "round_robin":
            return engine.last_pick
        if self._rules.policy == "least_loaded":
            return len(engine.running) / engine.offer.capacity
        waiting = engine.load.waiting if engine.load else 0
        return (engine.work + waiting) / self.speed(engine)


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
