"""When a rollout stops waiting for its last episodes. Pure."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopRule:
    """Once a share of the episodes has ended, the others have a grace period left.

    Ended means recorded, whatever the outcome; the share is of all episodes of the iteration, those not
    started yet included. A threshold of 1 waits for every episode.
    """

    completion_threshold: float
    grace_period_s: float

    def needed(self, total: int) -> int:
        """Episodes that must have ended before the grace period starts."""
        # Rounded first: 0.95 * 20 may be a hair above 19 in binary and must not ask for 20.
        return math.ceil(round(self.completion_threshold * total, 9))

    def deadline(self, *, done: int, total: int, now: float, deadline: float | None) -> float | None:
        """The instant at which the rest is abandoned; None while there is none.

        `deadline` is what an earlier call returned: the grace period starts once and is never extended.
        """
        if deadline is not None or done < self.needed(total):
            return deadline
        return now + self.grace_period_s
