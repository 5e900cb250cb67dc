"""Decides from the cost of the last difference whether to send the next one. Pure."""

from dataclasses import dataclass

from rl_agent.config.sections.weights import WeightsConfig

RETRY_AFTER = 8
"""Versions without a difference after one that did not pay. A try costs one encoding of all weights, so that
at most a ninth of the versions pays for it in vain."""


@dataclass(frozen=True, slots=True)
class DeltaCost:
    """The cost of a delta, and its size beside the full blob's."""

    full_bytes: int
    delta_bytes: int
    encode_s: float
    decode_s: float

    def saved_s(self, link_bytes_per_s: float) -> float:
        """Return by how many seconds a receiver has the version sooner than by a full transfer."""
        sent_s = (self.full_bytes - self.delta_bytes) / link_bytes_per_s
        return sent_s - self.encode_s - self.decode_s


@dataclass(frozen=True, slots=True)
class DeltaSwitch:
    """A switch that is off for some publishes after a delta that did not pay."""

    publishes_off: int = 0

    def is_on(self, weights: WeightsConfig) -> bool:
        return weights.delta == "always" or (weights.delta == "auto" and self.publishes_off == 0)

    def after(self, weights: WeightsConfig, cost: DeltaCost | None) -> "DeltaSwitch":
        """Return the switch for the next publish; `cost` is None if this one had no delta."""
        if cost is None:
            return DeltaSwitch(max(0, self.publishes_off - 1))
        return DeltaSwitch(0 if cost.saved_s(weights.link_bytes_per_s) > 0 else RETRY_AFTER)
