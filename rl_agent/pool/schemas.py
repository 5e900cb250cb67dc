"""Schemas of the manager's HTTP messages. Unknown fields are errors, so that a typo is not ignored.

What comes in is a `RequestBody`: of the type that is named and no other (`"1"` and `1.0` are no whole
numbers), and within bounds, since all of it goes on to the scheduler, the journal and the engines.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field

from rl_agent.pool.scheduler.records import Span
from rl_agent.pool.scheduler.reports import (
    STRICT,
    Digest,
    Load,
    SourceAddress,
    WeightsReport,
    WeightVersion,
    Words,
)
from rl_agent.pool.scheduler.sampling import MAX_TOKENS, TokenId, check_sampling

MAX_PROMPT_TOKENS = 2**20
LONGEST_S = 1e9
"""Some thirty years."""


def printable(text: str) -> str:
    """Return the text. Raises ValueError if it has characters that could harm a log or a terminal."""
    if not text.isprintable():
        raise ValueError("only printable characters are expected")
    return text


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(printable)]
TRANSFER_TOKEN = "X-Transfer-Token"  # noqa: S105 - a header's name
"""Header with the token of an offer, for who asks the manager for a version's bytes."""
NO_DIGEST = "none"
NEWS_S = 20.0
"""The longest time for which the manager keeps a worker waiting that asks for other weights."""


ENGINE_SECRET = "X-Engine-Secret"  # noqa: S105 - a header's name


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RequestBody(Message):
    """A body that a client sends."""

    model_config = STRICT


class RegisterRequest(RequestBody):
    """`POST /engines`. Without `url` the engine is reached through its worker's tunnel."""

    name: Name
    url: Annotated[str, Field(max_length=500)] | None = None
    api_key: Annotated[str, Field(max_length=500), AfterValidator(printable)] | None = None
    capacity: Annotated[int, Field(ge=1, le=100_000)] | None = None
    price_per_hour: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    kind: Annotated[str, Field(max_length=63), AfterValidator(printable)] = ""
    """The name below `pool.scale.kinds`; empty: it came by itself."""
    has_worker: bool = False
    """A worker will send the signs of life; else the manager looks for itself."""
    weights: WeightsReport | None = None


class RegisterAnswer(Message):
    engine_id: str
    secret: str
    """The value of the header `X-Engine-Secret` of every further call about this engine; the one given, if
    one was."""
    lease_s: float
    heartbeat_s: float


class StepRequest(RequestBody):
    """`POST /runs/{run}/step`: an optimizer step of the streaming trainer that has just ended."""

    waited_s: Annotated[float, Field(ge=0, le=LONGEST_S)]
    """The time spent waiting without a group to train on."""
    lasted_s: Annotated[float, Field(gt=0, le=LONGEST_S)]
    steps_together: Annotated[int, Field(ge=1, le=10_000)] = 1
    """The steps of all iterations that may be under way at once: these wait for each other's responses."""
    price_per_hour: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """The price of the trainer."""
    is_last: bool = False
    """The run ends with what has been submitted."""


class KindAnswer(Message):
    """A kind of engine that may be asked for."""

    name: str
    price_per_hour: float
    min_engines: int
    max_engines: int
    start_s: float
    """Seconds from asking for one until it serves, as learned."""


class WantedAnswer(Message):
    """`GET /wanted`: the engines that the pool wants, for whoever starts them."""

    counts: dict[str, int]
    """The counts by the name of the kind; empty where `pool.scale.kinds` is."""
    present: dict[str, int]
    """Ready, by the name of the kind."""
    reason: str
    since: float | None
    """Unix time at which these counts were first wanted."""
    ceiling: str
    """The key below `pool.scale` that keeps more from being wanted; empty: none does."""
    spent: float
    """Dollars, by all engines of this pool."""
    kinds: list[KindAnswer]


class FailedStartsReport(RequestBody):
    """Starts of a kind that failed one after the other."""

    count: Annotated[int, Field(ge=1, le=10**9)]
    retry_in_s: Annotated[float, Field(ge=0, le=LONGEST_S)]
    """The time until one is tried again."""
    joined: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Machines of it that are there: as many stay wanted, whether their engines are ready or not."""
    starting: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Machines of it that were asked for and may still come."""


class FleetRequest(RequestBody):
    """`POST /fleets/{fleet}`: a `pool scale` reports the kinds that its provider does not give."""

    failed: Annotated[dict[Name, FailedStartsReport], Field(max_length=64)] = {}
    """Failed starts by the name of the kind."""


class KeptScaling(BaseModel):
    """The state of scaling that a later manager goes on with."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    counts: dict[str, Annotated[int, Field(ge=0)]]
    spent: Annotated[float, Field(ge=0)]
    start_s: dict[str, Annotated[float, Field(ge=0)]]


class BeatRequest(RequestBody):
    """`POST /engines/{id}/beat`: the engine just answered its worker, or there is a problem."""

    load: Load | None = None
    weights: WeightsReport | None = None
    problem: Words = ""


class WantedWeights(Message):
    """`GET /weights/newer-than/{digest}`: the weights that engines must load."""

    digest: str
    """`none`: the pool wants no published weights."""


class WeightsOffer(Message):
    """The weights that an engine must load, and the sources to download them from."""

    weight_version: int
    digest: str
    delta_digest: str | None = None
    transfer_token: str
    sources: tuple[str, ...]
    """The publisher's addresses, then other hosts; none while the worker says that it is fetching."""
    publisher_addresses: int = 1
    """Number of `sources`, from the first, that are the publisher's."""
    useful_from: int | None = None
    """The oldest version of which a fetch that is under way goes on. None: only of this one."""
    may_load: bool = True
    """False: what was fetched waits, for the engine has to finish what it began."""


class BeatAnswer(Message):
    state: str
    reason: str
    model: str
    weight_version: int
    """The version that the pool wants to be served."""
    weights: WeightsOffer | None = None
    """The weights of that version, where it was published as weights."""
    running: int = 0
    """Requests that it has still: at 0 an engine that drains may be ended."""


class DrainRequest(RequestBody):
    deadline_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    reason: Words = "asked to drain"


class LeaveRequest(RequestBody):
    reason: Words
    is_crash: bool = False


class ModelRequest(RequestBody):
    """`POST /model`: what engines must serve from now on."""

    model: Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(printable)]
    weight_version: WeightVersion
    is_rollback: bool = False
    """The version may be older than the pool's."""


PublisherNumber = Annotated[int, Field(ge=1, lt=2**62)]


class WeightsRequest(RequestBody):
    """`POST /weights`: a version of the pool's model that engines fetch and load while they generate."""

    weight_version: Annotated[int, Field(ge=1, lt=2**48)]
    digest: Digest
    delta_digest: Digest | None = None
    """The digest of its difference from the version before. None: engines fetch the whole version."""
    sources: Annotated[tuple[SourceAddress, ...], Field(min_length=1, max_length=64)]
    transfer_token: Annotated[str, Field(min_length=1, max_length=500)]
    useful_from: WeightVersion | None = None
    """The oldest version that the trainer still takes tokens of. None: this one."""
    finish_within_s: Annotated[float, Field(ge=0, le=86_400)] | None = None
    """Responses are to be of one version: an engine finishes what it began, for so long at most, and takes
    this version then. None: it takes it at once, and responses go on with it."""
    publisher: PublisherNumber | None = None
    """The number of the publisher, as `POST /publishers` answered. None: it never asked, and gives way to who
    did."""


class PublisherRequest(RequestBody):
    """`POST /publishers`: a trainer takes the place of whoever published before it; an empty object."""


class PublisherTaken(RequestBody):
    """The number of the publisher that has the place."""

    publisher: PublisherNumber


class PublisherAnswer(Message):
    publisher: int
    """The number for its announcements. It is higher than any before, whose announcements are refused from
    now on."""


class WeightsAnswer(Message):
    weight_version: int
    """The version that the pool wants now."""
    is_accepted: bool
    """False: the version was stale and is skipped."""
    is_superseded: bool = False
    """A later publisher has this one's place: nothing that it announces will be accepted again."""


def _sampling(params: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters. Raises ValueError for one that cannot be used."""
    check_sampling(params)
    return params


class RunRequest(RequestBody):
    """A request of `POST /runs/{run}/requests`: `{"requests": [...]}`."""

    id: Name
    """Its name in the run; one that was submitted before is not submitted again."""
    prompt_token_ids: Annotated[
        tuple[TokenId, ...], Field(min_length=1, max_length=MAX_PROMPT_TOKENS), FailFast()
    ]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    sampling: Annotated[dict[str, Any], AfterValidator(_sampling)] = {}
    group: Name | None = None
    """Siblings have the same one: their samples come together, once all of them have ended."""
    min_weight_version: WeightVersion = 0
    """Engines with an older version do not get it."""
    expected_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    """Expected length, if it is known: the longest begin first."""
    vocab_size: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """The size of the model's vocabulary: an engine that answers another token is at fault. None: what the
    manager knows itself."""
    timeout_s: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = None
    """The time until it fails; None: `request_timeout_s` of the pool."""


class SubmitAnswer(Message):
    accepted: int
    known: int


class EndedRequest(Message):
    """One ended request, completed or failed with its reason; a line of `GET /runs/{run}/samples`."""

    cursor: int
    id: str
    group: str | None
    is_completed: bool
    failure: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    text: str = ""
    finish_reason: str = ""
    stop_reason: int | str | None = None
    spans: tuple[Span, ...] = ()
    """The engine and weight version that sampled the tokens from `start` on."""
    moves: int = 0
    duration_s: float = 0.0


class Cursor(BaseModel):
    """The query of `GET /runs/{run}/samples`."""

    model_config = ConfigDict(frozen=True)
    after: Annotated[int, Field(ge=0, lt=10**15)] = 0
    """The newest sample that is taken care of: the receipt for all up to it."""
    min: Annotated[int, Field(ge=0, lt=10**15)] = 1
    wait_s: Annotated[int, Field(ge=0, lt=10**15)] = 30
