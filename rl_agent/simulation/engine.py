"""An engine in virtual time, and what the machine is told of it.

All requests of an engine get their tokens at one rate, so a single count, the tokens that each of them got
since the engine began, says how far all are: a request ends when that count reaches what it was at its start
plus its length. Contexts grow as tokens come, so a chunk takes ever longer; the time for many has a closed
form, and between two changes of what runs nothing has to be computed.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.records import Request, RequestId
from rl_agent.pool.scheduler.reports import WeightsReport
from rl_agent.simulation.speeds import EngineSpeed

Key = tuple[RequestId, int]
"""A request and its attempt."""


class Clock(Protocol):
    """The part of the virtual pool that an engine needs."""

    chunk: int
    now: float

    def at(self, when: float, what: Callable[[], None]) -> None: ...
    def handle(self, event: events.Event) -> None: ...


@dataclass(slots=True)
class VirtualAttempt:
    request: Request
    began: float
    """The engine's count then."""
    length: int
    """Chunks that are still to come when it begins."""
    context: float
    """Chunks of its context then."""
    sent: int = 0


@dataclass(slots=True)
class VirtualEngine:
    """Counts in chunks: tokens that travel together."""

    world: Clock
    name: str
    engine_id: str
    speed: EngineSpeed
    weight_version: int
    length_of: Callable[[Request], int]
    """Chunks of a whole response."""
    is_alive: bool = True
    attempts: dict[Key, VirtualAttempt] = field(default_factory=dict)
    sampled: float = 0.0
    """The tokens sampled by attempts that are over."""
    count: float = 0.0
    _at: float = 0.0
    _stall_s: float = 0.0
    """Seconds of reading prompts or loading weights that come first."""
    _joined: tuple[int, int] = (-1, 0)
    """A chunk, and how many prompts have joined its steps."""
    _context: float = 0.0
    """Sum over attempts of the context at their start, less the count then."""
    _ends: list[tuple[float, Key]] = field(default_factory=list)
    _plan: int = 0
    """The number of the planned end that still holds."""
    _read: dict[str, float] = field(default_factory=dict)
    """Chunks of each episode's context that earlier turns have left in its cache, from which none is lost."""

    def begin(self, request: Request, attempt: int) -> None:
        self._advance()
        count = len(request.token_ids)
        context = len(request.order.prompt_token_ids) + count
        length = max(1, self.length_of(request) - count)
        key = (request.request_id, attempt)
        self.attempts[key] = VirtualAttempt(request, self.count, length, context)
        self._context += context - self.count
        heapq.heappush(self._ends, (self.count + length, key))
        new = max(0.0, context - self._read.pop(_episode_of(request), 0.0))
        self._stall_s += new * self.world.chunk * self.speed.prefill_s
        self._stall_s += self._join_s()
        self._replan()

    def abort(self, key: Key) -> None:
        if key in self.attempts:
            self._advance()
            self._drop(key)
            self._replan()

    def stall(self, seconds: float) -> None:
        """Give no token for so long."""
        self._advance()
        self._stall_s += seconds
        self._replan()

    def send(self) -> None:
        """Tell the machine of all whole chunks but the last, which comes with the finish."""
        self._advance()
        for key, attempt in list(self.attempts.items()):
            if key in self.attempts:
                sent = int(self.count - attempt.began + 1e-9)
                self._send_of(key, attempt, min(attempt.length - 1, sent))

    def report(self, weight_version: int, digest: str) -> None:
        """It has loaded that version."""
        self.weight_version = weight_version
        self.world.handle(events.Beat(self.engine_id, weights=WeightsReport(weight_version, digest)))

    def end(self) -> None:
        """It gives nothing any more."""
        self._advance()
        for key in list(self.attempts):
            self._drop(key)
        self.is_alive = False
        self._plan += 1

    def _advance(self) -> None:
        now, since = self.world.now, self._at
        self._at = now
        stalled = min(self._stall_s, now - since)
        self._stall_s -= stalled
        if self.attempts:
            self.count += self._chunks_in(now - since - stalled)

    def _chunk_s(self) -> tuple[float, float]:
        """Return the seconds in which every attempt gets a chunk, and how many more the next one takes."""
        requests, chunk = len(self.attempts), self.world.chunk
        context = (self._context + requests * self.count) * chunk
        return self.speed.decoding_s(requests, context) * chunk, self.speed.context_s * requests * chunk**2

    def _join_s(self) -> float:
        """Return by how much a prompt lengthens a step; a chunk has as many steps as tokens."""
        chunk, joined = int(self.count), self._joined[1] if self._joined[0] == int(self.count) else 0
        self._joined = chunk, joined + 1
        return self.speed.join_s if joined < self.world.chunk else 0.0

    def _seconds_for(self, chunks: float) -> float:
        first, growth = self._chunk_s()
        return first * chunks + growth * chunks**2 / 2

    def _chunks_in(self, seconds: float) -> float:
        """Return how many chunks every attempt gets: the inverse of `_seconds_for`."""
        first, growth = self._chunk_s()
        return 2 * seconds / (first + math.sqrt(first**2 + 2 * growth * seconds))

    def _replan(self) -> None:
        self._plan += 1
        while self._ends and self._ends[0][1] not in self.attempts:
            heapq.heappop(self._ends)
        if self._ends:
            left = max(0.0, self._ends[0][0] - self.count)
            plan = self._plan
            self.world.at(
                self.world.now + self._stall_s + self._seconds_for(left), lambda: self._finish_first(plan)
            )

    def _finish_first(self, plan: int) -> None:
        if plan != self._plan or not self.is_alive:
            return
        self._advance()
        end, key = heapq.heappop(self._ends)
        self.count = max(self.count, end)  # but for rounding it is there
        attempt = self.attempts[key]
        self._read[_episode_of(attempt.request)] = attempt.context + attempt.length
        self._drop(key)
        self._send_of(key, attempt, attempt.length, "stop")
        self._replan()

    def _send_of(self, key: Key, attempt: VirtualAttempt, count: int, finish: str | None = None) -> None:
        new = count - attempt.sent
        if new > 0:
            attempt.sent = count
            self.world.handle(events.Progress(*key, (0,) * new, (0.0,) * new, finish_reason=finish))

    def _drop(self, key: Key) -> None:
        attempt = self.attempts.pop(key)
        self._context -= attempt.context - attempt.began
        self.sampled += min(attempt.length, self.count - attempt.began)


def _episode_of(request: Request) -> str:
    """Return the name without that of the turn."""
    return request.request_id.name.rpartition("/")[0]
