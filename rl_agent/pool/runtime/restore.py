"""Reads a journal after a restart.

A row that cannot be used is one line, and the manager does not start: nothing that was acknowledged is lost
without a word.
"""

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from rl_agent.errors import StoreError, first_line
from rl_agent.pool.runtime.journal import Journal, Write
from rl_agent.pool.runtime.journal_rows import Key, ProgressRow, SubmissionRow, progress_end
from rl_agent.pool.runtime.results import Run
from rl_agent.pool.scheduler.records import PartialResponse
from rl_agent.pool.schemas import EndedRequest, KeptScaling, ModelRequest, PublisherTaken, WeightsRequest

_WANTED: dict[str, type[ModelRequest | WeightsRequest | PublisherTaken]] = {
    "model": ModelRequest,
    "weights": WeightsRequest,
    "publisher": PublisherTaken,
}


@dataclass(frozen=True, slots=True)
class InterruptedCall:
    """A request that an earlier manager began and did not end; its deadline by the pool's clock."""

    digest: str
    deadline: float
    response: PartialResponse


class Restore:
    """The contents of a journal, after `read`."""

    def __init__(self, journal: Journal, now: float, new_run: Callable[[str], Run]) -> None:
        self.runs: dict[str, Run] = {}
        self.deadlines: dict[Key, float] = {}
        """The deadlines of open requests, by the pool's clock."""
        self.calls: dict[Key, InterruptedCall] = {}
        self.wanted: list[ModelRequest | WeightsRequest | PublisherTaken] = []
        self.scaling: KeptScaling | None = None
        self._journal, self._new_run = journal, new_run
        self._now, self._ahead_s = now, time.time() - now
        self._stale: list[Write] = []

    def read(self) -> None:
        """Read all rows. Raises StoreError for one that cannot be used, or a database that is damaged."""
        try:
            self._read_each("wanted", "kind, record", "rowid", self._read_wanted)
            self._read_each("run", "name, acknowledged", "rowid", self._read_run)
            columns = "run, id, submission, sample, cursor"
            self._read_each("request", columns, "cursor, rowid", self._read_request)
            self._read_each("progress", "kind, run, id, start, record", "start", self._read_progress)
            self._journal.write(self._stale)
        except (OSError, sqlite3.Error) as error:
            raise self._journal.unusable(error) from error

    def _read_each(self, table: str, columns: str, order: str, read: Callable[..., None]) -> None:
        for number, *row in self._journal.rows(f"SELECT rowid, {columns} FROM {table} ORDER BY {order}"):  # noqa: S608
            try:
                read(*row)
            except (ValueError, LookupError, TypeError) as error:
                raise StoreError(
                    f"journal={self._journal.path}: row {number} of table {table} cannot be used:"
                    f" {_reason(error)}; name another file, or continue with the release that wrote it"
                ) from error

    def _read_wanted(self, kind: str, record: bytes | None) -> None:
        if kind == "scaling":
            self.scaling = KeptScaling.model_validate_json(record or b"")
        elif record is not None:
            self.wanted.append(_WANTED[kind].model_validate_json(record))

    def _read_run(self, name: str, acknowledged: int) -> None:
        run = self.runs[name] = self._new_run(name)
        run.cursor = run.acknowledged = acknowledged

    def _read_request(
        self, name: str, request_id: str, submission: bytes | None, sample: bytes | None, cursor: int | None
    ) -> None:
        run = self.runs.get(name) or self.runs.setdefault(name, self._new_run(name))
        run.ids.add(request_id)
        if submission is not None:
            row = SubmissionRow.model_validate_json(submission)
            run.submit(row.item)
            self.deadlines["request", name, request_id] = row.deadline - self._ahead_s
        elif sample is not None:
            ended = EndedRequest.model_validate_json(sample)
            if cursor is not None:
                run.samples.append(ended.model_copy(update={"cursor": cursor}))
                run.cursor = cursor
            elif ended.group is not None:
                run.held.setdefault(ended.group, []).append(ended)

    def _read_progress(self, kind: str, name: str, request_id: str, start: int, record: bytes) -> None:
        key, row = (kind, name, request_id), ProgressRow.model_validate_json(record)
        deadline = row.deadline - self._ahead_s
        if deadline < self._now:  # nobody will ask for it
            self._stale.append(progress_end(key))
            return
        response = row.follows(self.calls[key].response if key in self.calls else None, start)
        self.calls[key] = InterruptedCall(row.digest, deadline, response)


def _reason(error: Exception) -> str:
    """Return the error as one line, without what the row holds."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{'.'.join(str(part)[:100] for part in first['loc'])}: {first['msg']}"
    return first_line(error)
