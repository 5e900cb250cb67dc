"""The rows of the journal: what each of them holds, and the statements that write them. Pure."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import to_json

from rl_agent.pool.runtime.journal import Write
from rl_agent.pool.scheduler.records import PartialResponse, Request, Span
from rl_agent.pool.scheduler.sampling import TokenId
from rl_agent.pool.scheduler.state import PoolState
from rl_agent.pool.schemas import EndedRequest, KeptScaling, ModelRequest, PublisherTaken, RunRequest

Count = Annotated[int, Field(ge=0, lt=2**48)]
UnixTime = Annotated[float, Field(allow_inf_nan=False)]
"""A deadline in the journal, by the clock that goes on after the manager's end."""
_REPLACE_WANTED = "REPLACE INTO wanted(kind, record) VALUES (?, ?)"
Key = tuple[str, str, str]
"""The kind (`request` of a run's own, or `call` of the OpenAI API), the run, and the name in it."""


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class SubmissionRow(_Row):
    """An open request."""

    item: RunRequest
    deadline: UnixTime


class ProgressRow(_Row):
    """Tokens that were sampled since the row before, and what the request is recognised by."""

    token_ids: tuple[TokenId, ...]
    logprobs: tuple[float, ...]
    text_start: Count
    text: str
    spans: tuple[Span, ...]
    moves: Count
    digest: str
    deadline: UnixTime

    @model_validator(mode="after")
    def _has_pairs(self) -> "ProgressRow":
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.token_ids)} tokens with {len(self.logprobs)} logprobs")
        return self

    def follows(self, before: PartialResponse | None, start: int) -> PartialResponse:
        """Return the response so far. Raises ValueError if tokens before these are missing."""
        before = before or PartialResponse((), (), "", (), 0)
        if len(before.token_ids) < start or len(before.text) < self.text_start:
            raise ValueError(f"the tokens before number {start} are missing")
        return PartialResponse(
            token_ids=(*before.token_ids[:start], *self.token_ids),
            logprobs=(*before.logprobs[:start], *self.logprobs),
            text=before.text[: self.text_start] + self.text,
            spans=self.spans,
            moves=self.moves,
        )


def submission_write(run: str, item: RunRequest, deadline: UnixTime) -> Write:
    """Add an open request."""
    record = SubmissionRow(item=item, deadline=deadline).model_dump_json()
    return "INSERT INTO request(run, id, submission) VALUES (?, ?, ?)", (run, item.id, record)


def end_writes(key: Key, sample: EndedRequest, shown: list[EndedRequest]) -> list[Write]:
    """Record that a request ended, and the cursors of the samples that consumers may see from then on."""
    (_, run, _), record = key, sample.model_dump_json()
    return [
        ("UPDATE request SET submission = NULL, sample = ? WHERE run = ? AND id = ?", (record, *key[1:])),
        *(
            ("UPDATE request SET cursor = ? WHERE run = ? AND id = ?", (request.cursor, run, request.id))
            for request in shown
        ),
    ]


def acknowledged_writes(run: str, cursor: int) -> list[Write]:
    """Forget samples that their consumer has; their ids stay, so that none is submitted again."""
    forget = "UPDATE request SET sample = NULL, cursor = NULL WHERE run = ? AND cursor <= ?"
    return [("REPLACE INTO run(name, acknowledged) VALUES (?, ?)", (run, cursor)), (forget, (run, cursor))]


def dropped_writes(run: str) -> list[Write]:
    """Forget a run."""
    return [
        ("DELETE FROM run WHERE name = ?", (run,)),
        ("DELETE FROM request WHERE run = ?", (run,)),
        ("DELETE FROM progress WHERE kind = 'request' AND run = ?", (run,)),
    ]


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """The digest and the deadline of a call, by which a call that is sent again is recognised."""

    digest: str
    deadline: UnixTime


def progress_writes(
    key: Key, request: Request, start: int, text_start: int, call: CallIdentity
) -> list[Write]:
    """Record the tokens from `start` on and the text from `text_start` on, replacing what was there."""
    row: dict[str, Any] = {
        "token_ids": list(request.token_ids[start:]),
        "logprobs": list(request.logprobs[start:]),
        "text_start": text_start,
        "text": "".join(request.texts)[text_start:],
        "spans": request.spans,
        "moves": request.moves,
        "digest": call.digest,
        "deadline": call.deadline,
    }
    insert = "INSERT INTO progress(kind, run, id, start, record) VALUES (?, ?, ?, ?, ?)"
    return [progress_end(key, start), (insert, (*key, start, to_json(row)))]


def progress_end(key: Key, start: int = 0) -> Write:
    """Forget the tokens from `start` on of a request or call."""
    return "DELETE FROM progress WHERE kind = ? AND run = ? AND id = ? AND start >= ?", (*key, start)


def wanted_writes(state: PoolState) -> list[Write]:
    """Record what engines must serve; it holds after a restart whatever the settings say."""
    records: dict[str, bytes | None] = {}
    if state.publisher:
        records["publisher"] = to_json(PublisherTaken(publisher=state.publisher))
    if state.model:
        model = ModelRequest(model=state.model, weight_version=state.model_version, is_rollback=True)
        records["model"] = to_json(model)
        records["weights"] = None if state.weights is None else to_json(state.weights)
    return [(_REPLACE_WANTED, row) for row in records.items()]


def scaling_write(kept: KeptScaling) -> Write:
    """Record how many engines are wanted, and what they have cost."""
    return _REPLACE_WANTED, ("scaling", to_json(kept))
