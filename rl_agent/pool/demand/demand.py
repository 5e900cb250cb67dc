"""The facts that `wanted` decides by: the work of a pool, the speed of its engines, and their cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rl_agent.pool.demand.records import EngineKind


@dataclass(frozen=True, slots=True)
class WantedRules:
    """The settings below `pool.scale`; `configs/pool/elastic.yaml` explains them."""

    kinds: tuple[EngineKind, ...]
    max_dollars_per_hour: float | None
    max_dollars_per_run: float | None
    waiting_share: float
    finish_within_s: float
    raise_after_s: float
    lower_after_s: float


@dataclass(frozen=True, slots=True)
class TrainerSteps:
    """The newest steps of a streaming trainer, of all iterations that are under way, added up."""

    waited_s: float
    """The time spent waiting without a group to train on."""
    lasted_s: float
    tokens: float
    """Sampled by all engines meanwhile."""
    engine_s: float
    """Engine-seconds meanwhile; over `lasted_s`, the mean number of engines."""
    idle_s: float
    """Engine-seconds without a request."""
    engine_tokens_per_s: float = 0.0
    """Mean of the engines that were there, each with all it can do; 0: unknown."""
    price_per_hour: float = 0.0
    """The trainer's price in dollars; 0: unknown."""
    is_last: bool = False
    """The run ends with what has been submitted."""


@dataclass(frozen=True, slots=True)
class ScarceKind:
    """A kind whose starts keep failing."""

    retry_s: float
    """The time until one is tried again: 0 or less is now."""
    joined: int = 0
    """Machines of it that are there, whether their engines are ready just now or not."""
    starting: int = 0
    """Machines of it that were asked for and may still come."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A pool at one moment."""

    open_requests: int = 0
    open_tokens: float = 0.0
    """Expected to be sampled for them still."""
    left_s: float | None = None
    """The time by which the first of them has to be done; None: nobody says."""
    steps: TrainerSteps | None = None
    """None: no trainer waits for what is sampled."""
    tokens_per_s: Mapping[str, float] = field(default_factory=dict)
    """Measured, of one engine, by kind; those of no kind under the empty name."""
    present: Mapping[str, int] = field(default_factory=dict)
    """Engines that are ready, by kind; those of no kind under the empty name."""
    start_s: Mapping[str, float] = field(default_factory=dict)
    """Learned, by kind."""
    awaited_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Seconds since each engine was asked for that is wanted and has not come yet, by kind."""
    scarce: Mapping[str, ScarceKind] = field(default_factory=dict)
    """Kinds whose starts keep failing, by name."""
    requests_each: int = 1
    """The number of requests below which an engine is not worth having."""
    other_dollars_per_hour: float = 0.0
    """The price of the engines of no kind."""
    spent: float = 0.0
    """Dollars, by all engines of this pool."""

    def speed(self, kind: str) -> float:
        """Return the tokens per second of one engine, measured or like the others; 0 if none was measured."""
        if measured := self.tokens_per_s.get(kind, 0.0):
            return measured
        speeds = [speed for speed in self.tokens_per_s.values() if speed]
        return sum(speeds) / len(speeds) if speeds else 0.0
