"""Decides which pieces to fetch a second time, beside a source that seems too slow. Pure.

A connection that has nothing else to do takes over what another has not begun, and fetches what another is at
beside it; whichever is first counts. It does so where it expects to be clearly sooner, and never for the sake
of a moment: near the end of every transfer the last pieces are on their way, and nearly there.
"""

from collections.abc import Iterable
from dataclasses import dataclass

PATIENCE_S = 1.0
"""Pieces that are expected within this are waited for."""
_CLEARLY = 1.5
_UNKNOWN = 2.0
"""The share of one's patience that a source which has brought nothing so far is taken to need."""


@dataclass(frozen=True, slots=True)
class ClaimedPiece:
    """A piece that one connection is to fetch."""

    index: int
    ahead: int
    """Pieces that the connection is to bring before this one; 0: it is at this one."""
    for_s: float
    """Seconds since it began the piece that it is at."""
    pace_s: float | None
    """Seconds that its source takes for a piece; None: it has brought none."""

    @property
    def left_s(self) -> float:
        """The seconds until it is expected; one that is late is expected to take as long again."""
        pace_s = self.pace_s or 0.0
        return abs(self.for_s - pace_s) + self.ahead * max(self.for_s, pace_s)


def worth_a_second_fetch(held: Iterable[ClaimedPiece], own_pace_s: float | None) -> set[int]:
    """Return the claimed pieces that a source of this pace would bring clearly sooner."""
    soonest: dict[int, float] = {}
    unproven: dict[int, float] = {}
    for piece in held:
        if piece.pace_s is None:  # so it cannot begin again and again what it does not end
            unproven[piece.index] = max(piece.left_s, unproven.get(piece.index, 0.0))
        else:
            soonest[piece.index] = min(piece.left_s, soonest.get(piece.index, piece.left_s))
    own_s = _UNKNOWN * PATIENCE_S if own_pace_s is None else max(PATIENCE_S, _CLEARLY * own_pace_s)
    return {index for index, left_s in (unproven | soonest).items() if left_s > own_s}
