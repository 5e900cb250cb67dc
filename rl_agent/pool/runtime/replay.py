"""A journal read again: each record typed and applied; one that cannot be is set aside, and answered for.

    line ─► typed ─► applied to its run
      └──────┴─────► FILE.quarantine, with the reason; the manager starts all the same

What hangs on a record that is set aside does not wait in vain: its request fails, with the reason, in the
place that its end has among the others, so that every consumer's cursor stays right. Where not even the run
and the request can be read any more, there is only the file.
"""

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import to_json

from rl_agent.files import sync
from rl_agent.pool.runtime.calls import Key, LeftCall
from rl_agent.pool.runtime.journal import private, read_lines
from rl_agent.pool.runtime.results import Run, Submission, Zero, failed_sample
from rl_agent.pool.scheduler.records import Made, Span
from rl_agent.pool.scheduler.sampling import TokenId
from rl_agent.pool.schemas import BatchItem, ModelRequest, Name, Sample, WeightsRequest

log = logging.getLogger(__name__)
Count = Annotated[int, Field(ge=0, lt=2**48)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class _OfRun(_Record):
    run: Name


class _Submitted(_OfRun):
    kind: Literal["submitted"]
    request: BatchItem
    holds_group: bool
    deadline: Annotated[float, Field(allow_inf_nan=False)]
    boot: tuple[str, Annotated[float, Field(allow_inf_nan=False)]] = ("", 0.0)


class _Tokens(_OfRun):
    """What was sampled since the record before it."""

    id: Name
    start: Count
    token_ids: tuple[TokenId, ...]
    logprobs: tuple[float, ...]
    text_start: Count
    text: str
    spans: tuple[tuple[Count, str, Count], ...]
    moves: Count

    @model_validator(mode="after")
    def _has_pairs(self) -> "_Tokens":
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.token_ids)} tokens with {len(self.logprobs)} logprobs")
        return self


class _Progress(_Tokens):
    kind: Literal["progress"]


class _Call(_Tokens):
    kind: Literal["call"]
    digest: str
    deadline: Annotated[float, Field(allow_inf_nan=False)]
    boot: tuple[str, Annotated[float, Field(allow_inf_nan=False)]] = ("", 0.0)


class _CallEnded(_OfRun):
    kind: Literal["call_ended"]
    id: Name


class _Ended(_OfRun):
    kind: Literal["ended"]
    sample: Sample


class _Acknowledged(_OfRun):
    kind: Literal["acknowledged"]
    cursor: Count


class _Dropped(_OfRun):
    kind: Literal["dropped"]


class _Run(_OfRun):
    """The first record of each run in a journal that was rewritten; `_Kept` follow."""

    kind: Literal["run"]
    ids: tuple[Name, ...]
    next_cursor: Count
    acknowledged: Count


class _Kept(_OfRun):
    kind: Literal["sample"]
    sample: Sample


class _Model(_Record):
    kind: Literal["model"]
    asked: ModelRequest


class _Weights(_Record):
    kind: Literal["weights"]
    asked: WeightsRequest


_RECORD: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        _Submitted
        | _Progress
        | _Call
        | _CallEnded
        | _Ended
        | _Acknowledged
        | _Dropped
        | _Run
        | _Kept
        | _Model
        | _Weights,
        Field(discriminator="kind"),
    ]
)


class Replay:
    """`runs` and `calls` become what they were; `want` gets what engines were to serve."""

    def __init__(
        self,
        runs: dict[str, Run],
        calls: dict[Key, LeftCall],
        want: Callable[[ModelRequest | WeightsRequest], None],
        zero: Zero,
    ) -> None:
        self._runs = runs
        self._calls = calls
        self._want = want
        self._zero = zero
        self._broken: dict[tuple[str, str], str] = {}
        """Requests whose submission cannot be read, with the reason, by run and id."""
        self.set_aside: list[str] = []
        """Why, of each record that is in that file."""

    def read(self, path: Path) -> None:
        """Raises OSError if the journal cannot be read or that file not be written."""
        kept = []
        for number, line in read_lines(path):
            try:
                self._apply(_RECORD.validate_json(line))
            except Exception as error:  # whatever it is, it may not keep the manager from starting for ever
                words = f"record {number}: {_words_of(error)}"
                kept.append({"time": time.time(), "reason": words, "record": _shown(line)})
                self.set_aside.append(words)
                self._answer_for(line, words)
        for (name, request_id), words in self._broken.items():
            run = self._runs.get(name)
            if run is not None and request_id in run.open:
                run.end(_failed(run.open[request_id].item, words))
        if kept:
            _keep(path.with_name(path.name + ".quarantine"), kept)

    def _apply(self, record: Any) -> None:
        if isinstance(record, _Model | _Weights):
            self._want(record.asked)
            return
        if isinstance(record, _Dropped):
            self._runs.pop(record.run, None)
            return
        if isinstance(record, _Call | _CallEnded):
            self._apply_call(record)
            return
        run = self._runs.setdefault(record.run, Run(record.run))
        match record:
            case _Submitted():
                if record.request.id not in run.open:
                    run.submit(Submission(record.request, record.holds_group, self._deadline_of(record)))
            case _Progress():
                if record.id in run.open:
                    run.made[record.id] = _grown(run.made.get(record.id), record)
            case _Ended():
                if record.sample.id not in run.ids:  # its submission is set aside, its result is not
                    run.submit(Submission(_stand_in(record.sample.model_dump()), False, self._zero.epoch))
                run.end(record.sample)
            case _Acknowledged():
                run.next_cursor = max(run.next_cursor, record.cursor + 1)  # what it is of may be set aside
                run.acknowledge(record.cursor)
            case _Run():
                run.ids.update(record.ids)
                run.next_cursor, run.acknowledged = record.next_cursor, record.acknowledged
            case _Kept():
                run.samples.append(record.sample)

    def _apply_call(self, record: _Call | _CallEnded) -> None:
        key = (record.run, record.id)
        before = self._calls.pop(key, None)
        if isinstance(record, _Call):
            is_same = before is not None and before.digest == record.digest
            made = _grown(before.made if before is not None and is_same else None, record)
            self._calls[key] = LeftCall(record.digest, self._deadline_of(record), made)

    def _deadline_of(self, record: _Submitted | _Call) -> float:
        boot_id, by_boot = record.boot
        is_of_this_boot = boot_id != "" and boot_id == self._zero.boot_id
        return by_boot + self._zero.boot if is_of_this_boot else record.deadline + self._zero.epoch

    def _answer_for(self, line: bytes, words: str) -> None:
        """Who waits for what the record was about gets a failure instead."""
        try:
            record = json.loads(line)
            kind, run = record["kind"], self._runs.setdefault(record["run"], Run(record["run"]))
            if kind == "submitted":
                item = _stand_in(record["request"])
                if item.id not in run.ids:
                    run.submit(Submission(item, record.get("holds_group") is True, self._zero.epoch))
                    self._broken[run.name, item.id] = words
            elif kind == "ended" and (submission := run.open.get(record["sample"]["id"])) is not None:
                run.end(_failed(submission.item, words))
            elif kind == "sample":
                item, cursor = _stand_in(record["sample"]), int(record["sample"]["cursor"])
                run.samples.append(_failed(item, words).model_copy(update={"cursor": cursor}))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return


def _failed(item: BatchItem, words: str) -> Sample:
    return failed_sample(item.id, item.group, f"its record in the journal cannot be used: {words}")


def _stand_in(said: dict[str, Any]) -> BatchItem:
    """A request of which only the name is sure. Raises ValueError where not even that is."""
    group = said.get("group")
    return BatchItem(id=said["id"], prompt_token_ids=(0,), max_tokens=1, group=group)


def _grown(made: Made | None, record: _Tokens) -> Made:
    """Raises ValueError if tokens before these are missing."""
    before = made or Made((), (), "", (), 0)
    if len(before.token_ids) < record.start or len(before.text) < record.text_start:
        raise ValueError(f"tokens up to {record.start} of {record.id} are missing")
    return Made(
        token_ids=(*before.token_ids[: record.start], *record.token_ids),
        logprobs=(*before.logprobs[: record.start], *record.logprobs),
        text=before.text[: record.text_start] + record.text,
        spans=tuple(Span(*span) for span in record.spans),
        moves=record.moves,
    )


def _words_of(error: Exception) -> str:
    """One line, without what the record holds."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{'.'.join(str(part)[:100] for part in first['loc'])}: {first['msg']}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _shown(line: bytes) -> Any:
    """The record as it was, as text where it is no JSON."""
    return line.decode("utf-8", "backslashreplace").rstrip("\n")


def _keep(path: Path, entries: list[dict[str, Any]]) -> None:
    """Durable before the journal loses them."""
    with open(path, "ab", opener=private) as file:
        for entry in entries:
            file.write(to_json(entry) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    sync(path.parent)
    log.error("%d records of the journal cannot be used; they are in %s", len(entries), path)
