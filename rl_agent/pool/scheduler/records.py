"""Records of engines and requests. Plain values, which `machine` alone changes.

engine   registered ─(probe names the wanted model)─► ready ─► draining ─► gone
             │   └──(probe names another model)─► loading ─┘      ▲          ▲
             └──────────── lease over, process ended ─────────────┴──────────┘
request  queued ─► running ─► completed | failed
            ▲         │
            └─────────┘  moved: the tokens so far stay, the rest is generated elsewhere
"""

from array import array
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, NamedTuple
from urllib.parse import quote

from rl_agent.pool.scheduler.policies import PolicyMaker
from rl_agent.pool.scheduler.reports import NO_BYTES, NO_WEIGHTS, Load, WeightBytes, WeightsReport


class EngineState(StrEnum):
    REGISTERED = "registered"
    """Holds a lease; nobody has looked yet what it serves."""
    LOADING = "loading"
    """Serves another model than the pool wants, or weights too old or unknown, and is expected to change."""
    READY = "ready"
    DRAINING = "draining"
    """Told to leave: takes nothing new, its requests go at the end of their chunks (see `draining`)."""
    GONE = "gone"


class RequestState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class FailureKind(Enum):
    """The kinds of failure of a request, each with the HTTP status for clients of the OpenAI API."""

    REFUSED = ("refused", 400)
    """An engine says that the request itself is wrong."""
    PROMPT_TOO_LONG = ("prompt_too_long", 400)
    DEADLINE = ("deadline", 504)
    CANCELLED = ("cancelled", 499)
    """Its submitter has left."""
    BROKEN_OFF = ("broken_off", 502)
    """Healthy engines kept breaking it off."""
    CRASHES_ENGINES = ("crashes_engines", 502)
    WRONG_ANSWERS = ("wrong_answers", 502)
    """Every engine that was tried sent what it cannot have sampled."""
    INTERNAL = ("internal", 500)
    """The scheduler cannot handle it."""

    @property
    def http_status(self) -> int:
        return self.value[1]


@dataclass(frozen=True, slots=True)
class PoolRules:
    """The settings that the scheduler decides by; `configs/pool/elastic.yaml` explains those of its keys."""

    lease_s: float
    probe_interval_s: float
    start_timeout_s: float
    stall_timeout_s: float
    engine_deaths_limit: int
    max_broken_attempts: int
    policy: PolicyMaker
    rebalance_interval_s: float
    rebalance_gain_s: float
    weights_timeout_s: float
    stream_interval: int
    stream_interval_s: float
    min_progress_tokens: int = 16
    """Tokens that count as progress: more than a request samples on its way to the same crash again."""
    affinity_slack: float = 4.0
    """Siblings of a group stay at one engine, which has their prompt, while that delays them by at most this
    many responses."""
    max_versions_behind: int = 8
    """An engine whose weights are further behind gets no requests until it has caught up: what it samples
    would be too old for any trainer."""


@dataclass(frozen=True, slots=True)
class EngineOffer:
    """The registration of an engine."""

    engine_id: str
    """New with every registration: an incarnation."""
    name: str
    """Address of a direct engine, name of a worker's: the same after a restart on the same machine."""
    capacity: int
    """Requests it may run at once."""
    price_per_hour: float = 0.0
    kind: str = ""
    """The name below `pool.scale.kinds`; empty: it came by itself."""
    secret: str = field(default="", repr=False)
    """The secret that its worker gives with every further call."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A published version of the pool's weights: engines download it while they generate."""

    weight_version: int
    digest: str
    sources: tuple[str, ...]
    """The addresses where the publisher gives it: tcp://HOST:PORT."""
    transfer_token: str
    useful_from: int
    """An engine that fetches this version or a later one goes on with it although a newer one is wanted."""
    finish_within_s: float | None = None
    """Responses are of one version: so long engines may finish what they began. None: it is taken at once."""
    delta_digest: str | None = None
    """The digest of its difference from the version before; None: it has none."""
    publisher: int | None = None
    """The number of its publisher's place; None: it has none."""


class RequestId(NamedTuple):
    """Identifies a request among those of all runs of a pool."""

    run: str
    """The run of the request: runs share a pool fairly."""
    name: str
    """The name that its run gives it."""
    serial: int = 0
    """The number of dropped runs of this name before: their requests are others."""

    def __str__(self) -> str:
        """Return a text that differs for different requests, for engines and logs."""
        return f"{quote(self.run, safe='')}/{quote(self.name, safe='')}/{self.serial}"


@dataclass(slots=True)
class Engine:
    offer: EngineOffer
    state: EngineState
    registered_at: float
    lease_until: float
    ready_after: float
    """A name whose engines keep dying, or answer wrongly, waits before it gets work again."""
    is_quarantined: bool = False
    """It waits for its wrong answers."""
    wrong_answers: int = 0
    reason: str = ""
    model: str = ""
    weight_version: int = 0
    weights: WeightsReport = NO_WEIGHTS
    received: WeightBytes = NO_BYTES
    """Bytes of weights that came since it registered."""
    behind_since: float | None = None
    """The time since which it serves an older version than is wanted, without having come any further."""
    finishing_since: float | None = None
    """The time since which it only finishes what it began with these weights (see `single_version`)."""
    is_switching: bool = False
    """It has finished, and takes the next weights now."""
    finishing_s: float = 0.0
    """The time it took to finish, added up."""
    max_model_len: int = 0
    is_doubted: bool = False
    """A request broke here, or it was said not to be well; until it answers nothing new is sent."""
    doubted_at: float = 0.0
    broken: dict[RequestId, None] = field(default_factory=dict)
    """Requests that broke here since the last sign of life, having got nowhere."""
    drain_until: float = 0.0
    leave_by: float = 0.0
    """The time by which the requests of a draining engine leave, so that they are gone before it is."""
    load: Load | None = None
    running: dict[RequestId, None] = field(default_factory=dict)
    """Ids of the requests here, oldest first."""
    suspect: RequestId | None = None
    """The request that runs here on trial (see `crash_suspects`)."""
    work: float = 0.0
    """Tokens its requests are expected to need still."""
    last_pick: int = 0
    tokens_since_measure: int = 0
    seconds_since_measure: float = 0.0
    """The time that its requests took for these tokens, added up."""
    lately: deque[tuple[float, int]] = field(default_factory=deque)
    """Seconds and tokens of the last measures."""
    tokens_per_s: float = 0.0
    """Best throughput seen lately; 0 until measured."""
    request_tokens_per_s: float = 0.0
    """Best rate of one request seen lately; 0 until measured."""
    was_uncrowded: bool = False
    """True if that rate was seen with so few requests that more of them would not have slowed it down."""
    useful_tokens: int = 0
    recomputed_tokens: int = 0
    """Tokens thrown away because their response began anew."""
    prefilled_tokens: int = 0
    """Prompt tokens read again because a request moved here."""
    idle_s: float = 0.0
    idle_since: float | None = None

    @property
    def engine_id(self) -> str:
        return self.offer.engine_id

    @property
    def has_room(self) -> bool:
        return len(self.running) < self.offer.capacity


@dataclass(frozen=True, slots=True)
class Span:
    """The engine and weight version that sampled the tokens from `start` up to the next span."""

    start: int
    engine_id: str
    weight_version: int


@dataclass(frozen=True, slots=True)
class Order:
    """A request as it was submitted; never changes."""

    request_id: RequestId
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    params: dict[str, Any]
    """Every other sampling parameter, by its OpenAI or vLLM name."""
    deadline: float
    """Monotonic time after which nobody wants the answer."""
    group: str | None = None
    """Siblings with the same prompt: kept on one engine while that helps."""
    min_weight_version: int = 0
    """Engines with an older version do not get it."""
    expected_tokens: int | None = None
    """The length of the response that its submitter expects."""
    episode: str = ""
    """Names the episode whose turns are all to be of one weight version."""
    is_read_along: bool = False
    """Somebody waits for every token."""
    needs_names: bool = False
    """True if the name of each token is wanted, too."""
    needs_text: bool = True
    """False: the tokens are enough, and an engine that can be asked for them alone makes no text."""
    vocab_size: int | None = None
    """Token ids that an engine may answer are below it, as its submitter knows the model. None: unknown."""
    images: tuple[str, ...] = ()
    """Digests of the images of the prompt, in the order of the tokens that stand for them."""

    @property
    def run(self) -> str:
        return self.request_id.run


@dataclass(frozen=True, slots=True)
class PartialResponse:
    """The part of a response that an earlier manager has recorded."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    text: str
    spans: Sequence[Span]
    moves: int


@dataclass(frozen=True, slots=True)
class Departure:
    """The last engine that a request had to leave."""

    engine: str
    """Its name; empty: one of an earlier manager."""
    reason: str
    at: float


@dataclass(slots=True)
class Request:
    order: Order
    number: int
    """Place in the order of submission."""
    submitted_at: float
    state: RequestState = RequestState.QUEUED
    attempt: int = 0
    """Counts dispatches; what arrives from an older one is dropped."""
    engine_id: str | None = None
    token_ids: "array[int]" = field(default_factory=lambda: array("l"))
    logprobs: "array[float]" = field(default_factory=lambda: array("d"))
    texts: list[str] = field(default_factory=list)
    cut_characters: int = 0
    """The characters of its last token's text that a stop string cut off."""
    names: list[str] = field(default_factory=list)
    """The names of the tokens, where they are needed."""
    spans: list[Span] = field(default_factory=list)
    seen_prompt: tuple[int, ...] = ()
    """The prompt as the model saw it, where an engine made that of images."""
    attempt_start: int = 0
    """Tokens it had when the running attempt began."""
    interval: int = 1
    """Tokens that its engine sends together."""
    is_excused: bool = False
    """It broke off before a first, long chunk came, which says nothing about it; the next ones are short."""
    expected: float = 0.0
    """Tokens it was expected to need when it was sent."""
    last_progress: float = 0.0
    moves: int = 0
    left: Departure | None = None
    """The departure from its last engine, until it is sent to another."""
    restarts: int = 0
    """The number of times its tokens were thrown away, to begin anew."""
    deaths: set[str] = field(default_factory=set)
    """Names of engines that died under it before it had got anywhere."""
    questions: dict[str, str] = field(default_factory=dict)
    """Engines (id, name) where its connection broke and that may be dead."""
    num_deaths: int = 0
    unrelated_before: int = 0
    wrong_answers_by: Counter[str] = field(default_factory=Counter)
    """Names of engines that answered wrongly, and how often, since it last got anywhere."""
    refused_by: str = ""
    """Name of an engine that said the request is wrong, where another is asked for its opinion."""
    broken_attempts: int = 0
    """Breaks at engines that turned out to be alive, since it last got anywhere."""
    reached: int = 0
    """Most tokens it had at any death."""
    finish_reason: str = ""
    stop_reason: int | str | None = None
    failure: str = ""
    """The reason of its failure, in words; empty unless it failed."""
    failure_kind: FailureKind | None = None
    ended_at: float = 0.0

    @property
    def request_id(self) -> RequestId:
        return self.order.request_id

    @property
    def episode(self) -> tuple[str, str]:
        return self.order.run, self.order.episode

    @property
    def is_open(self) -> bool:
        return self.state in (RequestState.QUEUED, RequestState.RUNNING)

    @property
    def is_running(self) -> bool:
        return self.state is RequestState.RUNNING

    @property
    def weight_versions(self) -> tuple[int, int]:
        """Return the lowest and highest version that sampled a token; (0, 0) before the first."""
        versions = [span.weight_version for span in self.spans]
        return (min(versions), max(versions)) if versions else (0, 0)


@dataclass(slots=True)
class EngineTotals:
    """Sums over engines."""

    up_s: float = 0.0
    idle_s: float = 0.0
    cost: float = 0.0
    """Dollars, by what their registrations named as their price."""
    useful_tokens: int = 0
    recomputed_tokens: int = 0
    prefilled_again_tokens: int = 0
    finishing_s: float = 0.0
    weight_bytes: WeightBytes = NO_BYTES

    def add(self, engine: Engine, now: float) -> None:
        up_s = now - engine.registered_at
        self.up_s += up_s
        self.idle_s += engine.idle_s + (now - engine.idle_since if engine.idle_since is not None else 0.0)
        self.cost += up_s / 3600 * engine.offer.price_per_hour
        self.useful_tokens += engine.useful_tokens
        self.recomputed_tokens += engine.recomputed_tokens
        self.prefilled_again_tokens += engine.prefilled_tokens
        self.finishing_s += engine.finishing_s
        self.weight_bytes = self.weight_bytes.plus(engine.received)
        if engine.finishing_since is not None and not engine.is_switching:
            self.finishing_s += now - engine.finishing_since


@dataclass(slots=True)
class Account:
    """Counts of a pool; always, `submitted = open + completed + failed`."""

    submitted: int = 0
    completed: int = 0
    failed: int = 0
    moves: int = 0
    engine_deaths: int = 0
    wrong_answers: int = 0
    tokens: int = 0
    gone: EngineTotals = field(default_factory=EngineTotals)
    """The totals of the engines that are gone; however many those are."""
