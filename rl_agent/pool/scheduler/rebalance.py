"""Rebalance running requests to minimise the makespan. Pure: shares in, moves out.

An engine gives each of its requests `rate` tokens per second while they are few, and shares `total` when they
are many. So its last response ends after the sum, over its responses from the shortest on, of

    (tokens more than the one before) * max(1 / rate, how many are still there / total)

and late ends weigh most. Until nothing helps any more, a request of the engine that ends last goes where that
saves most, alone or against a short one that comes back: long responses gather on fast engines, and short
ones make room for them. What a move costs, reading the context again, counts as tokens.
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from rl_agent.pool.scheduler.records import RequestId

SAMPLES = 64
"""Responses of one engine that the formula looks at; of more, every n-th stands for its neighbours."""
EARLY = 0.7
"""Share of the time left after which an engine that ends then is helped already, though more waits."""
POWER = 4
"""The exponent by which a late end weighs more than an early one."""


@dataclass(frozen=True, slots=True, order=True)
class Remainder:
    """The tokens that a request is expected to need still."""

    tokens: float
    request_id: RequestId
    reading: float = field(compare=False)
    """The cost of a move, in tokens."""
    can_move: bool = field(compare=False)

    def moved(self) -> "Remainder":
        return Remainder(self.tokens + self.reading, self.request_id, self.reading, self.can_move)


@dataclass(frozen=True, slots=True)
class Move:
    request_id: RequestId
    source: str
    target: str


class Share:
    """One engine and the tokens that its requests need still."""

    def __init__(
        self, engine_id: str, rate: float, total: float, room: int, rests: Sequence[Remainder]
    ) -> None:
        self.engine_id = engine_id
        self.rate = rate
        self.total = total
        self.room = room
        self.rests = sorted(rests)
        self.cost, self.ends_after_s = self._weigh(self.rests)

    def with_change(self, out: Remainder | None, come: Remainder | None) -> tuple[float, float]:
        """Return the cost and the end after a change."""
        return self._weigh(self._changed(out, come))

    def change(self, out: Remainder | None, come: Remainder | None) -> None:
        self.rests = self._changed(out, come)
        self.room += bool(out) - bool(come)
        self.cost, self.ends_after_s = self._weigh(self.rests)

    def seconds_of(self, rest: Remainder, others: int) -> float:
        """Return the seconds until a request would end here among so many others."""
        return rest.tokens * max(1.0 / self.rate, (others + 1) / self.total)

    def _changed(self, out: Remainder | None, come: Remainder | None) -> list[Remainder]:
        rests = [rest for rest in self.rests if rest is not out] if out else self.rests[:]
        if come is not None:
            insort(rests, come.moved())
        return rests

    def _weigh(self, rests: Sequence[Remainder]) -> tuple[float, float]:
        """Return the sum of the responses' end times to the power of `POWER`, and the latest end."""
        count = len(rests)
        stride = max(1, -(-count // SAMPLES))
        seconds = before = cost = 0.0
        for first in range(0, count, stride):
            after = min(count, first + stride)
            tokens = rests[after - 1].tokens
            seconds += (tokens - before) * max(1.0 / self.rate, (count - first) / self.total)
            cost += (after - first) * seconds**POWER
            before = tokens
        return cost, seconds


def plan_moves(
    shares: Sequence[Share], *, gain_s: float, limit: int, waiting_tokens: float = 0.0
) -> list[Move]:
    """Return about `limit` moves at most; changes `shares`.

    While `waiting_tokens` are still to be sampled, an engine that would end before them is left alone.
    """
    moves: list[Move] = []
    total = sum(share.total for share in shares)
    rest = sum(rest.tokens for share in shares for rest in share.rests)
    horizon_s = EARLY * (rest + waiting_tokens) / total if waiting_tokens and total else 0.0
    while len(moves) < limit and (choice := _best(shares, gain_s, horizon_s)) is not None:
        source, target, out, back = choice
        source.change(out, back)
        target.change(back, out)
        moves.append(Move(out.request_id, source.engine_id, target.engine_id))
        if back is not None:
            moves.append(Move(back.request_id, target.engine_id, source.engine_id))
    return moves


def _best(
    shares: Sequence[Share], gain_s: float, horizon_s: float
) -> tuple[Share, Share, Remainder, Remainder | None] | None:
    """Return the move or exchange that saves most, away from the engine that ends last if possible."""
    late = [share for share in shares if share.ends_after_s > horizon_s]
    for source in sorted(late, key=lambda share: share.ends_after_s, reverse=True):
        best, choice = 0.0, None
        for target in shares:
            if target is source:
                continue
            for out, back in _options(source, target):
                cost_here, ends_here = source.with_change(out, back)
                cost_there, ends_there = target.with_change(back, out)
                saved = source.cost + target.cost - cost_here - cost_there
                if saved > best and _gain(source, target, out, back, max(ends_here, ends_there)) >= gain_s:
                    best, choice = saved, (source, target, out, back)
        if choice is not None:
            return choice
    return None


def _gain(source: Share, target: Share, out: Remainder, back: Remainder | None, ends_s: float) -> float:
    """Return the seconds by which the request, or both engines, end earlier; negative if later."""
    sooner_s = max(source.ends_after_s, target.ends_after_s) - ends_s
    if sooner_s < 0:
        return sooner_s
    here_s = source.seconds_of(out, len(source.rests) - 1)
    there_s = target.seconds_of(out.moved(), len(target.rests) - bool(back))
    return max(here_s - there_s, sooner_s)


def _options(source: Share, target: Share) -> list[tuple[Remainder, Remainder | None]]:
    """Return the moves to consider: the longest, middle and shortest request, and one exchange."""
    movable = [rest for rest in source.rests if rest.can_move]
    if not movable:
        return []
    options: list[tuple[Remainder, Remainder | None]] = []
    if target.room > 0:
        options += [(movable[-1], None), (movable[len(movable) // 2], None), (movable[0], None)]
    back = next((rest for rest in target.rests if rest.can_move), None)
    if back is not None and back.tokens < movable[-1].tokens:
        options.append((movable[-1], back))
    return options
