"""Decides from the cost of the last difference whether to send the next one. Pure."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DeltaSettings:
    mode: Literal["auto", "always", "never"]
    block_bytes: int
    link_bytes_per_s: float
    """What a receiver's link carries: on a fast link the time to encode and decode counts for more."""
    retry_after: int
    """Publishes without a delta after one that did not pay."""


@dataclass(frozen=True, slots=True)
class DeltaCost:
    full_bytes: int
    delta_bytes: int
    encode_s: float
    decode_s: float

    def saved_s(self, link_bytes_per_s: float) -> float:
        """Seconds by which a receiver has the version sooner than by a full transfer; negative if later."""
        sent_s = (self.full_bytes - self.delta_bytes) / link_bytes_per_s
        return sent_s - self.encode_s - self.decode_s


@dataclass(frozen=True, slots=True)
class DeltaSwitch:
    """Off for some publishes after a delta that did not pay, then tried again."""

    publishes_off: int = 0

    def is_on(self, settings: DeltaSettings) -> bool:
        return settings.mode == "always" or (settings.mode == "auto" and self.publishes_off == 0)

    def after(self, settings: DeltaSettings, cost: DeltaCost | None) -> "DeltaSwitch":
        """The switch for the next publish; `cost` is None if this one had no delta."""
        if cost is None:
            return DeltaSwitch(max(0, self.publishes_off - 1))
        return DeltaSwitch(0 if cost.saved_s(settings.link_bytes_per_s) > 0 else settings.retry_after)
