"""Asks the index: which episodes fit a filter, one page of them at a time, and where their lines lie.

    words ─► ids, newest iterations first, for `TEXT_BUDGET_S` at most ─┐
    the other fields ─────────────────────────────────────────────────┴─► rows

What a search for words has not come to is said, with a link that goes on from there.
"""

import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from rl_agent.page.index import EpisodeIndex
from rl_agent.page.indexed import COLUMNS
from rl_agent.page.words import MAX_ITERATION, expression_of
from rl_agent.types import Status

PAGE_ROWS = 50
MAX_WORDS = 8
MAX_TEXT = 300
MAX_PAGE = 100_000
TEXT_BUDGET_S = 1.2
TEXT_STRETCH = 100_000
"""Episodes that are searched for words at a time."""
ORDERS = {
    "newest": "iteration DESC, started_at DESC",
    "oldest": "iteration, started_at",
    "reward, lowest": "reward NULLS LAST",
    "reward, highest": "reward DESC NULLS LAST",
    "longest": "response_tokens DESC",
    "most turns": "turns DESC",
    "slowest": "duration_s DESC",
}
_EQUAL = {"split": str, "iteration": int, "status": str, "difficulty": str, "env": str, "task_id": str}
_LIMITS = {
    "reward_min": ("reward >= ? - 1e-9", float),
    "reward_max": ("reward <= ? + 1e-9", float),
    "tokens_min": ("response_tokens >= ?", int),
    "tokens_max": ("response_tokens <= ?", int),
    "turns_min": ("turns >= ?", int),
    "version": ("? BETWEEN version_min AND version_max", int),
}
_UNTIL = "until"
"""The newest iteration in which words are looked for."""
FIELDS = (*_EQUAL, *_LIMITS, "failure", "text", "order", _UNTIL)
STATUSES = tuple(status.value for status in Status)


@dataclass(frozen=True, slots=True)
class Query:
    """A filter of the list, as the form sends it."""

    fields: Mapping[str, str]
    """What was filled in, by the form's names; an empty text where nothing was."""
    where: str
    parameters: tuple[Any, ...]
    order: str
    words: str = ""
    """An expression of the words that must occur; empty: any."""
    span: tuple[int, int] = (0, MAX_ITERATION)
    """First and last iteration in which they are looked for."""
    problem: str = ""
    """What of the form could not be used."""


@dataclass(frozen=True, slots=True)
class FoundPage:
    """One page of what a query found."""

    rows: list[dict[str, Any]]
    total: int
    reward_mean: float | None
    by_status: list[tuple[str, int]]
    page: int
    stopped_at: int | None = None
    """The iteration before which words were not looked for yet; None: everywhere."""

    @property
    def pages(self) -> int:
        return max(1, math.ceil(self.total / PAGE_ROWS))


def read_query(given: Mapping[str, str]) -> Query:
    """Return the filter that a form has; what cannot be read is named and left out."""
    fields = {name: given.get(name, "").strip()[:MAX_TEXT] for name in FIELDS}
    conditions: list[str] = []
    parameters: list[Any] = []
    problems: list[str] = []
    readers = {name: (f"{name} = ?", kind) for name, kind in _EQUAL.items()} | _LIMITS
    for name, (condition, kind) in readers.items():
        if not fields[name]:
            continue
        try:
            value = kind(fields[name])
            if kind is not str and not -(2**62) < value < 2**62:
                raise ValueError
        except ValueError:
            problems.append(f"{name.replace('_', ' ')}: {fields[name][:40]!r} is no number")
            continue
        conditions.append(condition)
        parameters.append(value)
    for word in words_of(fields["failure"]):
        conditions.append("contains(lower(failure), ?)")
        parameters.append(word)
    words = expression_of(words_of(fields["text"]))
    if fields["text"] and not words:
        problems.append(f"text: {fields['text'][:40]!r} has no letter and no digit to look for")
    order = fields["order"] if fields["order"] in ORDERS else "newest"
    where = " AND ".join(conditions) or "true"
    return Query(fields, where, tuple(parameters), order, words, _span(fields), "; ".join(problems))


def _span(fields: Mapping[str, str]) -> tuple[int, int]:
    first, last = 0, MAX_ITERATION
    if (only := _iteration(fields["iteration"])) is not None:
        first = last = only
    if (until := _iteration(fields[_UNTIL])) is not None:
        last = min(last, until)
    return first, last


def _iteration(text: str) -> int | None:
    return min(int(text), MAX_ITERATION) if text.isdecimal() and len(text) < 20 else None


def words_of(text: str) -> list[str]:
    """Return the words that must occur, in lower case; what stands in double quotes is one."""
    parts = text.lower().split('"')
    words: list[str] = []
    for number, part in enumerate(parts):
        words += [part] if number % 2 and part else part.split()
    return words[:MAX_WORDS]


def search(index: EpisodeIndex, query: Query, page: int) -> FoundPage:
    """Return a page of the episodes that fit, pages counted from 1."""
    page = max(1, min(page, MAX_PAGE))
    ids, stopped_at = _ids_of(index, query, TEXT_BUDGET_S)
    sql = f"""
        WITH hits AS MATERIALIZED (
            SELECT rowid AS place, status, reward, iteration, started_at, response_tokens, turns, duration_s
            FROM episode WHERE {_where(query)})
        SELECT (SELECT count(*) FROM hits),
               (SELECT avg(reward) FROM hits),
               (SELECT list((status, n)) FROM (SELECT status, count(*) AS n FROM hits GROUP BY status)),
               (SELECT list(place) FROM
                    (SELECT place FROM hits ORDER BY {ORDERS[query.order]}, place LIMIT {PAGE_ROWS} OFFSET ?))
        """  # noqa: S608 - conditions and orders are constants above
    found = index.ask(sql, [*query.parameters, (page - 1) * PAGE_ROWS], ids=ids)
    total, mean, by_status, places = found[0] if found else (0, None, None, None)
    rows = _rows_at(index, places or [])
    return FoundPage(rows, total or 0, mean, sorted(by_status or []), page, stopped_at)


def _where(query: Query) -> str:
    return f"{query.where} AND id IN (SELECT id FROM found)" if query.words else query.where  # noqa: S608 - as above


def _ids_of(index: EpisodeIndex, query: Query, budget_s: float) -> tuple["array[int] | None", int | None]:
    """Return the episodes that have the words, and the iteration before which nobody has looked."""
    if not query.words:
        return None, None
    ids, until = array("q"), monotonic() + budget_s
    for first, last, is_last in _stretches(index, query.span):
        ids.extend(index.find(query.words, first, last))
        if not is_last and monotonic() > until:
            return ids, first
    return ids, None


def _stretches(index: EpisodeIndex, span: tuple[int, int]) -> Iterator[tuple[int, int, bool]]:
    """Yield the iterations from which and to which to look, newest first, and whether these are the last."""
    sql = """SELECT iteration, count(*) FROM episode WHERE iteration BETWEEN ? AND ?
             GROUP BY iteration ORDER BY iteration DESC"""
    last, waiting = span[1], 0
    counts = index.ask(sql, [*span])
    for number, (iteration, count) in enumerate(counts, start=1):
        waiting += count
        if waiting >= TEXT_STRETCH and number < len(counts):
            yield iteration, last, False
            last, waiting = iteration - 1, 0
    yield span[0], last, True


def _rows_at(index: EpisodeIndex, places: list[int]) -> list[dict[str, Any]]:
    shown = [name for name in COLUMNS if name != "text"]
    marks = ", ".join("?" * len(places))
    sql = f"SELECT rowid, {', '.join(shown)} FROM episode WHERE rowid IN ({marks})"  # noqa: S608
    found = {
        row[0]: dict(zip(shown, row[1:], strict=True)) for row in (index.ask(sql, places) if places else ())
    }
    return [found[at] for at in places if at in found]


def group_rows(
    index: EpisodeIndex, split: str, iteration: int, task_id: str, group: int
) -> list[dict[str, Any]]:
    """Return the rows of a group's siblings, in the order of their attempts."""
    sql = (
        "SELECT rowid FROM episode WHERE split = ? AND iteration = ? AND task_id = ? AND group_index = ?"
        " ORDER BY attempt LIMIT 256"
    )
    return _rows_at(index, [at for (at,) in index.ask(sql, [split, iteration, task_id, group])])


def places_of(index: EpisodeIndex, query: Query) -> Iterator[tuple[str, str, int, int]]:
    """Return (split, file, begin, size) of every episode that fits, a stretch of rows at a time."""
    last = -1
    ids, _ = _ids_of(index, query, budget_s=math.inf)
    sql = f"""SELECT rowid, split, file, begin, size FROM episode WHERE rowid > ? AND {_where(query)}
              ORDER BY rowid LIMIT 1000"""  # noqa: S608
    while rows := index.ask(sql, [last, *query.parameters], ids=ids):
        last = rows[-1][0]
        yield from (row[1:] for row in rows)


def choices(index: EpisodeIndex) -> dict[str, list[str]]:
    """Return what there is to choose from, for the form."""
    sql = "SELECT DISTINCT {} FROM episode ORDER BY 1 LIMIT 50"
    return {
        name: [str(value) for (value,) in index.ask(sql.format(name), [])] for name in ("difficulty", "env")
    }
