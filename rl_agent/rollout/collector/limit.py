"""Limits the requests at the engine: as many as it can run, and few that wait there.

A request that waits inside the engine is served no sooner than one that waits here, but its timeout runs,
and cancelling it costs the engine work. Too few leave batch slots empty. About once a second:

    slack  = max(2, running / 8)                       a short queue, so that a freed slot is taken at once
    down:    waiting > slack   limit ← max(running + slack, 3/4 limit)
    up:      places are all taken and waiting ≤ slack   limit ← limit + max(1, limit / 8)
    always:  min_sessions ≤ limit ≤ max_sessions (the maximum wins)

Down is geometric, so a single sample in which the engine was busy with prompts (many waiting, few running
yet) costs a quarter at most; up is quick enough to win that back in three seconds.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType

from rl_agent.engine.wire import EnginePressure
from rl_agent.errors import EngineError, RetryLater

log = logging.getLogger(__name__)

SAMPLE_INTERVAL_S = 1.0
SILENCE_TIMEOUT_S = 60.0
"""A server that answers no question about its load for so long hangs; its requests would all time out."""


@dataclass(frozen=True, slots=True)
class LimitRule:
    """The limit moves between `rollout.min_vllm_sessions` and `max_vllm_sessions`."""

    min_sessions: int
    max_sessions: int

    def next_limit(self, limit: int, pressure: EnginePressure, *, in_use: int) -> int:
        """Return the limit for the next second, by the formula above."""
        slack = max(2, pressure.running // 8)
        if pressure.waiting > slack:
            limit = max(pressure.running + slack, limit * 3 // 4)
        elif in_use >= limit:
            limit += max(1, limit // 8)
        return min(self.max_sessions, max(self.min_sessions, limit))


class EngineGate:
    """Places at the engine, first come first served; `async with` waits for one and gives the seconds waited.

    Also measures how long the engine had nothing to do, and what it sampled. Not thread-safe: one event loop.
    """

    def __init__(self, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.in_use = 0
        self.sampled_tokens = 0
        """Tokens of all responses since construction."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._clock = clock
        self._idle_since: float | None = clock()
        self._idle_s = 0.0

    async def __aenter__(self) -> float:
        if self.in_use < self.limit and not self._waiting:
            self._take()
            return 0.0
        start = self._clock()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the place came together with the cancellation
                self._give_back()
            raise
        return self._clock() - start

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    @asynccontextmanager
    async def at_once(self) -> AsyncIterator[float]:
        """Take a place without waiting, beyond the limit if need be: the engine itself waits for this."""
        self._take()
        try:
            yield 0.0
        finally:
            self._give_back()

    def set_limit(self, limit: int) -> None:
        """A lower limit takes effect as places are given back; nobody is thrown out."""
        self.limit = limit
        self._admit()

    @property
    def queued(self) -> int:
        return sum(not turn.done() for turn in self._waiting)

    def idle_s(self) -> float:
        """Return the seconds since construction in which no request was at the engine."""
        current = 0.0 if self._idle_since is None else self._clock() - self._idle_since
        return self._idle_s + current

    def _take(self) -> None:
        if self._idle_since is not None:
            self._idle_s += self._clock() - self._idle_since
            self._idle_since = None
        self.in_use += 1

    def _give_back(self) -> None:
        self.in_use -= 1
        self._admit()
        if self.in_use == 0:
            self._idle_since = self._clock()

    def _admit(self) -> None:
        while self._waiting and self.in_use < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled while it waited
                self._take()
                turn.set_result(None)


async def follow_pressure(
    gate: EngineGate,
    rule: LimitRule,
    pressure: Callable[[], Awaitable[EnginePressure]],
    *,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Adjust `gate` until cancelled.

    A server without these metrics keeps the full `max_sessions`. Raises RetryLater if the server has been
    silent for `SILENCE_TIMEOUT_S`; a busy one may miss a question.
    """
    answered_at = clock()
    has_answered = False
    while True:
        await sleep(SAMPLE_INTERVAL_S)
        try:
            sample = await pressure()
        except EngineError as error:
            if has_answered:  # it has the metrics, and was only too busy to show them
                continue
            log.warning("requests at the engine stay at most %d: %s", gate.limit, error)
            return
        except RetryLater:
            if clock() - answered_at > SILENCE_TIMEOUT_S:
                raise
            continue
        answered_at = clock()
        has_answered = True
        limit = rule.next_limit(gate.limit, sample, in_use=gate.in_use)
        if limit != gate.limit:
            log.debug("requests at the engine: at most %d (%s)", limit, sample)
            gate.set_limit(limit)
