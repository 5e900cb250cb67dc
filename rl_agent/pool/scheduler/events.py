"""The scheduler's input (events) and output (commands). Values only."""

from dataclasses import dataclass

from rl_agent.pool.scheduler.records import (
    NO_WEIGHTS,
    EngineOffer,
    EngineState,
    Load,
    Order,
    PartialResponse,
    RequestId,
    Weights,
    WeightsReport,
)


@dataclass(frozen=True, slots=True)
class Registered:
    offer: EngineOffer
    weights: WeightsReport = NO_WEIGHTS


@dataclass(frozen=True, slots=True)
class Probed:
    """The engine answered the probe: it is alive and serves this model."""

    engine_id: str
    model: str
    max_model_len: int


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    engine_id: str
    problem: str


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat of a worker, whose engine just answered it: renews the lease.

    With a problem it did not, or is not well: that renews nothing, and nothing new is sent there.
    """

    engine_id: str
    load: Load | None = None
    weights: WeightsReport | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class BytesArrived:
    """Bytes of a response arrived from the engine, maybe not a whole token yet: renews the lease."""

    engine_id: str


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """The engine leaves at `until`; its requests leave before, each at the end of its chunk."""

    engine_id: str
    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class EngineEnded:
    """The engine left the pool, or its process has ended."""

    engine_id: str
    reason: str
    is_crash: bool


@dataclass(frozen=True, slots=True)
class ModelWanted:
    """The pool serves this model from now on; engines with another one load it."""

    model: str
    weight_version: int
    is_rollback: bool = False
    """The version may be an older one than the pool is at."""


@dataclass(frozen=True, slots=True)
class WeightsWanted:
    """The pool serves these weights from now on; engines keep theirs until they have loaded them."""

    weights: Weights


@dataclass(frozen=True, slots=True)
class Submitted:
    order: Order
    made: PartialResponse | None = None
    """What an earlier manager had of it."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    request_id: RequestId


@dataclass(frozen=True, slots=True)
class EpisodeEnded:
    """The episode has ended: none of its turns will come any more."""

    run: str
    episode: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Tokens of an attempt arrived; the last event of an attempt is Finished or Broken."""

    request_id: RequestId
    attempt: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str = ""
    names: tuple[str, ...] = ()
    is_last: bool = False
    """Its finish came with these tokens and is told next."""


@dataclass(frozen=True, slots=True)
class Finished:
    request_id: RequestId
    attempt: int
    finish_reason: str
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """The attempt ended without a finish."""

    request_id: RequestId
    attempt: int
    problem: str
    is_refusal: bool = False
    """The engine said that the request itself is wrong (4xx)."""
    is_wrong_answer: bool = False
    """What the engine sent cannot be what it sampled."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The consumer has the results: the requests can be removed."""

    request_ids: tuple[RequestId, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    Registered
    | Probed
    | ProbeFailed
    | Beat
    | BytesArrived
    | DrainAsked
    | EngineEnded
    | ModelWanted
    | WeightsWanted
    | Submitted
    | Cancelled
    | EpisodeEnded
    | Progress
    | Finished
    | Broken
    | Forgotten
    | Tick
)


@dataclass(frozen=True, slots=True)
class Probe:
    engine_id: str


@dataclass(frozen=True, slots=True)
class Generate:
    """Send the request, with the tokens it has, to the engine."""

    request_id: RequestId
    attempt: int
    engine_id: str


@dataclass(frozen=True, slots=True)
class Abort:
    """End the attempt at the engine; what it still sends is dropped."""

    request_id: RequestId
    attempt: int
    engine_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The request is completed or failed."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class EngineChanged:
    engine_id: str
    state: EngineState
    reason: str


@dataclass(frozen=True, slots=True)
class SetAside:
    """The scheduler could not handle an event or a request, and goes on without it."""

    reason: str


Command = Probe | Generate | Abort | Ended | EngineChanged | SetAside
