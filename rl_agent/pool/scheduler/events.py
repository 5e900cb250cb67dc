"""The scheduler's input (events) and output (commands). Values only."""

from dataclasses import dataclass

from rl_agent.pool.scheduler.records import (
    EngineOffer,
    EngineState,
    Order,
    PartialResponse,
    RequestId,
    Weights,
)
from rl_agent.pool.scheduler.reports import NO_WEIGHTS, Load, WeightsReport


class Event:
    """Something that happened to a pool."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class EngineEvent(Event):
    """Something that happened to an engine; dropped once that is gone."""

    engine_id: str


@dataclass(frozen=True, slots=True)
class AttemptEvent(Event):
    """Something that happened to an attempt; dropped once that is over."""

    request_id: RequestId
    attempt: int


@dataclass(frozen=True, slots=True)
class Registered(Event):
    offer: EngineOffer
    weights: WeightsReport = NO_WEIGHTS


@dataclass(frozen=True, slots=True)
class Probed(EngineEvent):
    """The engine answered the probe: it is alive and serves this model."""

    model: str
    max_model_len: int


@dataclass(frozen=True, slots=True)
class ProbeFailed(EngineEvent):
    problem: str


@dataclass(frozen=True, slots=True)
class Beat(EngineEvent):
    """A heartbeat of a worker, whose engine just answered it: renews the lease.

    With a problem it did not, or is not well: that renews nothing, and nothing new is sent there.
    """

    load: Load | None = None
    weights: WeightsReport | None = None
    problem: str = ""


class BytesArrived(EngineEvent):
    """Bytes of a response arrived from the engine, maybe not a whole token yet: renews the lease."""


@dataclass(frozen=True, slots=True)
class DrainAsked(EngineEvent):
    """The engine leaves at `until`; its requests leave before, each at the end of its chunk."""

    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class EngineEnded(EngineEvent):
    """The engine left the pool, or its process has ended."""

    reason: str
    is_crash: bool


@dataclass(frozen=True, slots=True)
class ModelWanted(Event):
    """The pool serves this model from now on; engines with another one load it."""

    model: str
    weight_version: int
    is_rollback: bool = False
    """The version may be an older one than the pool is at."""


@dataclass(frozen=True, slots=True)
class WeightsWanted(Event):
    """The pool serves these weights from now on; engines keep theirs until they have loaded them."""

    weights: Weights


@dataclass(frozen=True, slots=True)
class PlaceTaken(Event):
    """A publisher takes the place of those with lower numbers, whose weights are no longer taken."""

    publisher: int


@dataclass(frozen=True, slots=True)
class Submitted(Event):
    order: Order
    response: PartialResponse | None = None
    """The part of the response that an earlier manager had."""


@dataclass(frozen=True, slots=True)
class Cancelled(Event):
    request_id: RequestId


@dataclass(frozen=True, slots=True)
class EpisodeEnded(Event):
    """The episode has ended: none of its turns will come any more."""

    run: str
    episode: str


@dataclass(frozen=True, slots=True)
class Progress(AttemptEvent):
    """Tokens of an attempt arrived, or its end; the last event of an attempt has a finish, or is Broken."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str = ""
    names: tuple[str, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()
    """The prompt of the attempt as the model saw it, where it has images."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class Broken(AttemptEvent):
    """The attempt ended without a finish."""

    problem: str
    is_refusal: bool = False
    """The engine said that the request itself is wrong (4xx)."""
    is_wrong_answer: bool = False
    """True if the engine cannot have sampled what it sent."""


@dataclass(frozen=True, slots=True)
class Forgotten(Event):
    """The consumer has the results: the requests can be removed."""

    request_ids: tuple[RequestId, ...]


class Tick(Event):
    """Time has passed."""


class PoolCommand:
    """Something that the runtime has to do."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ProbeEngine(PoolCommand):
    engine_id: str


@dataclass(frozen=True, slots=True)
class AttemptCommand(PoolCommand):
    """A command about one attempt of a request at an engine."""

    request_id: RequestId
    attempt: int
    engine_id: str


class Generate(AttemptCommand):
    """Send the request, with the tokens it has, to the engine."""


class Abort(AttemptCommand):
    """End the attempt at the engine; what it still sends is dropped."""


@dataclass(frozen=True, slots=True)
class Moved(PoolCommand):
    """A request that left an engine is sent to another one, or there again."""

    request_id: RequestId
    source: str
    """Name of the engine that it left; empty: one of an earlier manager."""
    target: str
    tokens: int
    """The tokens that move with the request."""
    waited_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Ended(PoolCommand):
    """The request is completed or failed."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class EngineChanged(PoolCommand):
    engine_id: str
    state: EngineState
    reason: str


@dataclass(frozen=True, slots=True)
class SetAside(PoolCommand):
    """The scheduler could not handle an event or a request, and goes on without it."""

    reason: str
