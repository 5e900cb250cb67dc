"""The manager's own messages. Requests forbid what they do not know; a typo is an error, not a default."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LoadReport(Message):
    running: Annotated[int, Field(ge=0)]
    waiting: Annotated[int, Field(ge=0)]
    kv_use: Annotated[float, Field(ge=0, le=1)] = 0.0


class RegisterRequest(Message):
    """`POST /engines`. Without `url` the engine is reached over the worker's own connection."""

    name: Name
    url: Annotated[str, Field(max_length=500)] | None = None
    api_key: Annotated[str, Field(max_length=500)] | None = None
    capacity: Annotated[int, Field(ge=1, le=100_000)] | None = None
    price_per_hour: Annotated[float, Field(ge=0)] = 0.0
    has_worker: bool = False
    """A worker will send the signs of life; else the manager looks for itself."""


class RegisterAnswer(Message):
    engine_id: str
    lease_s: float
    heartbeat_s: float


class BeatRequest(Message):
    """`POST /engines/{id}/beat`: the engine itself answered just now."""

    load: LoadReport | None = None


class BeatAnswer(Message):
    state: str
    reason: str
    model: str
    weight_version: int
    """What the pool wants to be served."""


class DrainRequest(Message):
    deadline_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    reason: Annotated[str, Field(max_length=500)] = "asked to drain"


class LeaveRequest(Message):
    reason: Annotated[str, Field(max_length=500)]
    is_crash: bool = False


class ModelRequest(Message):
    """`POST /model`: what engines must serve from now on."""

    model: Name
    weight_version: Annotated[int, Field(ge=0)]


class BatchItem(Message):
    id: Name
    prompt_token_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)]
    sampling: dict[str, Any] = {}
    group: Name | None = None


class BatchRequest(Message):
    """`POST /runs/{run}/requests`. An id that the run has submitted before is not submitted again."""

    requests: Annotated[tuple[BatchItem, ...], Field(min_length=1)]
    deadline_s: Annotated[float, Field(gt=0)] | None = None
    holds_groups: bool = False
    """Give out the samples of a group only once all of them have ended."""


class BatchAnswer(Message):
    accepted: int
    known: int


class SpanRecord(Message):
    start: int
    engine_id: str
    weight_version: int


class Sample(Message):
    """One ended request, completed or failed with its reason; a line of `GET /runs/{run}/samples`."""

    cursor: int
    id: str
    group: str | None
    is_completed: bool
    failure: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: str
    stop_reason: int | str | None
    spans: tuple[SpanRecord, ...]
    """Which engine and weight version sampled the tokens from `start` on."""
    moves: int
    duration_s: float
