"""A `Deadline` is a time by which a wait ends, checked on every operation rather than once."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time by which a wait has to end."""

    at: float
    """The deadline on the monotonic clock."""

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(time.monotonic() + seconds)

    def remaining_s(self, at_most: float = float("inf")) -> float:
        """Return the seconds until then, capped. Raises TimeoutError when there are none."""
        left_s = self.at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("deadline reached")
        return min(left_s, at_most)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.at

    def sooner(self, seconds: float) -> "Deadline":
        """Return this deadline, or one after `seconds`, whichever comes first."""
        return Deadline(min(self.at, time.monotonic() + seconds))
