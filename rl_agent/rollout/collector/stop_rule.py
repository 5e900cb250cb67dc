"""Decides when a rollout stops waiting for its last episodes. Pure."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopRule:
    """Gives the remaining episodes a grace period once a share of all has ended.

    Ended means recorded, whatever the outcome; the share is of all episodes that the iteration asks for by
    then, those not started yet included. A threshold of 1 waits for every episode.
    """

    completion_threshold: float
    grace_period_s: float

    def needed(self, total: int) -> int:
        """Return how many episodes must have ended before the grace period starts."""
        # Rounded first: 0.95 * 20 may be a hair above 19 in binary and must not ask for 20.
        return math.ceil(round(self.completion_threshold * total, 9))

    def is_due(self, *, done: int, total: int) -> bool:
        """Return whether the grace period of the rest has begun."""
        return done >= self.needed(total)
