"""A reconciler's observation of the world, and the limits and times that it decides by."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rl_agent.errors import RetryLater
from rl_agent.pool.demand.records import EngineKind, RentedMachine, Wanted


class RunOver(RetryLater):
    """The manager does not answer, and the file that stated its address is gone: its run is over."""


class WhenLost(StrEnum):
    """The treatment of machines once the manager has not answered for long."""

    KEEP = "keep"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class ScaleRules:
    """The limits and times that a reconciler decides by."""

    start_timeout_s: float
    """The time from asking for a machine until its engine is in the pool; also for one that left and may come
    back."""
    drain_s: float
    settle_s: float
    """The time that a machine must not be listed until it is believed to be gone."""
    backoff_s: float
    """Pause after a start that failed; it doubles with each one after it, up to `backoff_limit_s`."""
    backoff_limit_s: float
    stop_again_s: float
    manager_timeout_s: float
    """The time for which everything is kept as it is while the manager does not answer."""
    when_lost: WhenLost
    max_engines: int | None = None
    """The most engines of all kinds together."""
    max_price_per_hour: float | None = None
    """Dollars for all machines that may exist."""


@dataclass(frozen=True, slots=True)
class PoolEngine:
    """An engine as the manager's status shows it."""

    name: str
    running: int
    is_draining: bool
    kind: str = ""


@dataclass(frozen=True, slots=True)
class PoolView:
    """The pool's state as its manager tells it."""

    engines: dict[str, PoolEngine]
    wanted: Wanted | None
    """None: it does not say."""
    kinds: tuple[EngineKind, ...]


@dataclass(frozen=True, slots=True)
class FleetObservation:
    """One observation of the world. None: no answer."""

    now: float
    engines: Mapping[str, PoolEngine] | None
    wanted: Wanted | None
    kinds: tuple[EngineKind, ...] | None
    machines: tuple[RentedMachine, ...] | None
    is_refused: bool = False
    """The manager is there and refuses the token: it is not lost."""
    is_over: bool = False
    """The manager's run is over: it does not answer because it has ended."""
