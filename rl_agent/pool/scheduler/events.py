"""What can happen to a pool, and what the machine answers. Values only."""

from dataclasses import dataclass

from rl_agent.pool.scheduler.records import (
    NO_WEIGHTS,
    EngineOffer,
    EngineState,
    Load,
    Made,
    Order,
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
    """The engine answered: it is alive and serves this."""

    engine_id: str
    model: str
    max_model_len: int


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    engine_id: str
    problem: str


@dataclass(frozen=True, slots=True)
class Beat:
    """What a worker says of its engine, which answered it just now: renews the lease.

    With a problem it did not, or is not well: that renews nothing, and nothing new is sent there.
    """

    engine_id: str
    load: Load | None = None
    weights: WeightsReport | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Heard:
    """Bytes of a response came from the engine, whether they are tokens yet or not: renews the lease."""

    engine_id: str


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """The engine leaves at `until`; its requests go before, each at the end of its chunk."""

    engine_id: str
    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class EngineEnded:
    """The engine left, or its process is known to be over."""

    engine_id: str
    reason: str
    is_crash: bool


@dataclass(frozen=True, slots=True)
class ModelWanted:
    """From now on the pool serves this; engines that hold another model load it."""

    model: str
    weight_version: int
    is_rollback: bool = False
    """The version may be an older one than the pool is at."""


@dataclass(frozen=True, slots=True)
class WeightsWanted:
    """From now on the pool serves this version of its model; engines go on with theirs until they have it."""

    weights: Weights


@dataclass(frozen=True, slots=True)
class Submitted:
    order: Order
    made: Made | None = None
    """What an earlier manager had of it."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    request_id: RequestId


@dataclass(frozen=True, slots=True)
class EpisodeEnded:
    """None of its turns will come any more."""

    run: str
    episode: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Tokens of one attempt; the last event of an attempt is Finished or Broken."""

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
    """The consumer has the results: their records may go."""

    request_ids: tuple[RequestId, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    Registered
    | Probed
    | ProbeFailed
    | Beat
    | Heard
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
    """End the attempt at the engine; what it still sends is not wanted."""

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
    """The machine could not handle an event, or a request, that should never have come to it; it goes on."""

    words: str


Command = Probe | Generate | Abort | Ended | EngineChanged | SetAside
