"""Read a journal after a restart: rows that cannot be used are quarantined, all others count.

    row ─► typed ─► its run
     └──────┴─────► FILE.quarantine, with the reason; the manager starts all the same

Nobody waits in vain for what was quarantined: its request fails, with the reason. A sample that cannot be
read keeps its cursor, so that the cursors of all others stay right.
"""

import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from rl_agent.files import sync
from rl_agent.pool.runtime.journal import Journal, Write
from rl_agent.pool.runtime.journal_rows import (
    Count,
    Key,
    ProgressRow,
    SubmissionRow,
    end_writes,
    progress_end,
)
from rl_agent.pool.runtime.results import ClockOffsets, Run, Submission, failed_sample
from rl_agent.pool.scheduler.records import PartialResponse
from rl_agent.pool.schemas import BatchItem, EndedRequest, ModelRequest, Name, PublisherTaken, WeightsRequest

log = logging.getLogger(__name__)
_NAME, _GROUP = TypeAdapter(Name), TypeAdapter(Name | None)
_COUNT = TypeAdapter(Count)
_WANTED: dict[str, type[ModelRequest | WeightsRequest | PublisherTaken]] = {
    "model": ModelRequest,
    "weights": WeightsRequest,
    "publisher": PublisherTaken,
}


@dataclass(frozen=True, slots=True)
class InterruptedCall:
    """A call that an earlier manager began and did not end; its deadline by the pool's clock."""

    digest: str
    deadline: float
    made: PartialResponse


class Restore:
    """The contents of a journal, after `read`."""

    def __init__(self, journal: Journal, now: float) -> None:
        self.runs: dict[str, Run] = {}
        self.made: dict[Key, PartialResponse] = {}
        """Tokens that open requests have got."""
        self.calls: dict[Key, InterruptedCall] = {}
        self.wanted: list[ModelRequest | WeightsRequest | PublisherTaken] = []
        self.problems = list(journal.problems)
        """Reports of what the journal lost, and reasons why quarantined rows cannot be used."""
        self._journal = journal
        self._now, self._zero = now, ClockOffsets.of(now)
        self._row: tuple[str, int, list[Any]] = ("", 0, [])
        """Table, number and columns of what is being read."""
        self._quarantined: list[dict[str, Any]] = []
        self._failed: list[tuple[Run, EndedRequest]] = []
        """Requests of which nothing can be read: they end once all other rows are read."""
        self._writes: list[Write] = []
        """Writes that make the journal right again."""

    def read(self) -> None:
        """Read all rows. Raises StoreError if the database itself is damaged, or takes no write."""
        try:
            self._read_each("wanted", "kind, record", "rowid", self._read_wanted)
            self._read_each("run", "name, acknowledged", "rowid", self._read_run)
            columns = "run, id, submission, sample, cursor"
            self._read_each("request", columns, "cursor, rowid", self._read_request)
            for run in self.runs.values():
                run.newest = run.next_cursor - 1
            for run, sample in self._failed:
                shown = run.end(sample)
                run.show(shown)
                self._writes += end_writes(run.name, sample, shown)
            self._read_each("progress", "kind, run, id, start, record", "start", self._read_progress)
            if self._quarantined:
                self._write_quarantine()
            self._journal.write(self._writes)
        except (OSError, sqlite3.Error) as error:
            raise self._journal.unusable(error) from error

    def _read_each(self, table: str, columns: str, order: str, read: Callable[..., None]) -> None:
        for number, *row in self._journal.rows(f"SELECT rowid, {columns} FROM {table} ORDER BY {order}"):  # noqa: S608
            self._row = (table, number, row)
            try:
                read(*row)
            except Exception as error:  # whatever it is, it may not keep the manager from starting for ever
                self._quarantine(error)
                self._writes.append((f"DELETE FROM {table} WHERE rowid = ?", (number,)))  # noqa: S608

    def _quarantine(self, error: Exception) -> str:
        """Add the present row to the quarantine; return why its request fails."""
        table, number, row = self._row
        reason = f"row {number} of table {table}: {_reason(error)}"
        shown = [one.decode("utf-8", "backslashreplace") if isinstance(one, bytes) else one for one in row]
        self.problems.append(reason)
        self._quarantined.append({"time": time.time(), "reason": reason, "row": shown})
        return f"its record in the journal cannot be used: {reason}"

    def _read_wanted(self, kind: str, record: bytes | None) -> None:
        if record is not None:
            self.wanted.append(_WANTED[kind].model_validate_json(record))

    def _read_run(self, name: str, acknowledged: int) -> None:
        _NAME.validate_python(name)
        acknowledged = _COUNT.validate_python(acknowledged)
        self.runs[name] = Run(name, acknowledged=acknowledged, next_cursor=acknowledged + 1)

    def _read_request(
        self, name: str, request_id: str, submission: bytes | None, sample: bytes | None, cursor: int | None
    ) -> None:
        _NAME.validate_python(name), _NAME.validate_python(request_id)
        if cursor is not None:
            _COUNT.validate_python(cursor)
        run = self.runs.setdefault(name, Run(name))
        run.ids.add(request_id)
        if sample is not None:
            self._read_sample(run, request_id, sample, cursor)
        elif submission is not None:
            try:
                found = SubmissionRow.model_validate_json(submission)
                deadline = self._zero.deadline(found.deadline)
                run.submit(Submission(found.item, found.holds_group, deadline))
            except ValueError as error:
                self._fail(run, _stand_in(request_id, submission), error)

    def _read_sample(self, run: Run, request_id: str, record: bytes, cursor: int | None) -> None:
        try:
            found = EndedRequest.model_validate_json(record)
        except ValueError as error:
            stand_in = _stand_in(request_id, record)
            if cursor is None and stand_in.item.group is None:
                self._fail(run, stand_in, error)
                return
            found = failed_sample(request_id, stand_in.item.group, self._quarantine(error))
            self._writes += end_writes(run.name, found, [])
        if cursor is not None:
            run.samples.append(found.model_copy(update={"cursor": cursor}))
            run.next_cursor = cursor + 1
        elif found.group is not None:
            run.held.setdefault(found.group, {})[request_id] = found

    def _fail(self, run: Run, stand_in: Submission, error: Exception) -> None:
        run.submit(stand_in)
        item = stand_in.item
        self._failed.append((run, failed_sample(item.id, item.group, self._quarantine(error))))

    def _read_progress(self, kind: str, name: str, request_id: str, start: int, record: bytes) -> None:
        key, found = (name, request_id), ProgressRow.model_validate_json(record)
        _COUNT.validate_python(start)
        if kind == "request" and name in self.runs and request_id in self.runs[name].open:
            self.made[key] = found.follows(self.made.get(key), start)
        elif kind == "call" and found.deadline and self._zero.deadline(found.deadline) >= self._now:
            made = found.follows(self.calls[key].made if key in self.calls else None, start)
            self.calls[key] = InterruptedCall(found.digest, self._zero.deadline(found.deadline), made)
        else:  # nobody will ask for it
            self._writes.append(progress_end(kind, key))

    def _write_quarantine(self) -> None:
        """Write the quarantined rows to a file, durably, before the journal loses them."""
        path = self._journal.path.with_name(self._journal.path.name + ".quarantine")
        path.touch(mode=0o600)
        with path.open("ab") as file:
            file.writelines(to_json(entry) + b"\n" for entry in self._quarantined)
            file.flush()
            os.fsync(file.fileno())
        sync(path.parent)
        log.error("%d rows of the journal cannot be used; they are in %s", len(self._quarantined), path)


def _stand_in(request_id: str, record: bytes) -> Submission:
    """Return a request of which only the id is sure, with its group if that can still be read."""
    group, holds_group = None, False
    with suppress(ValueError, AttributeError, RecursionError):
        found = json.loads(record)
        group = _GROUP.validate_python(found.get("item", found).get("group"))
        holds_group = found.get("holds_group") is True
    item = BatchItem(id=request_id, prompt_token_ids=(0,), max_tokens=1, group=group)
    return Submission(item, holds_group, 0.0)


def _reason(error: Exception) -> str:
    """Return the error as one line, without what the row holds."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{'.'.join(str(part)[:100] for part in first['loc'])}: {first['msg']}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
