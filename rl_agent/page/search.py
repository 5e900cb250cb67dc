"""Asks the index: which episodes fit a filter, one page of them at a time, and where their lines lie."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rl_agent.page.charts import Histogram, histogram, ticks
from rl_agent.page.index import EpisodeIndex
from rl_agent.page.indexed import SHOWN
from rl_agent.types import Status

PAGE_ROWS = 50
MAX_WORDS = 8
MAX_TEXT = 300
MAX_PAGE = 100_000
MAX_WHOLE = 2**62
"""Larger numbers of a form are none that a column has."""
RECENT_ITERATIONS = 10
"""The worst tasks are those of so many iterations."""
MAX_COLUMNS = 20
MAX_TASKS = 50
ORDERS = {
    "newest": "iteration DESC, started_at DESC",
    "oldest": "iteration, started_at",
    "reward, lowest": "reward NULLS LAST",
    "reward, highest": "reward DESC NULLS LAST",
    "longest": "response_tokens DESC",
    "most turns": "turns DESC",
    "slowest": "duration_s DESC",
}
_READERS = {
    **{name: (f"{name} = ?", str) for name in ("split", "status", "difficulty", "env", "task_id")},
    "iteration": ("iteration = ?", int),
    "reward_min": ("reward >= ? - 1e-9", float),
    "reward_max": ("reward <= ? + 1e-9", float),
    "tokens_min": ("response_tokens >= ?", int),
    "tokens_max": ("response_tokens <= ?", int),
    "version": ("? BETWEEN version_min AND version_max", int),
}
FIELDS = (*_READERS, "failure", "text", "order")
STATUSES = tuple(status.value for status in Status)
_HIT = "rowid AS place, status, reward, iteration, started_at, response_tokens, turns, duration_s"


@dataclass(frozen=True, slots=True)
class Query:
    """A filter of the list, as the form sends it."""

    fields: Mapping[str, str]
    """The values filled in, by the form's names; an empty text where nothing was."""
    where: str
    parameters: tuple[Any, ...]
    needles: tuple[str, ...]
    """The parts that the words of an episode must contain."""
    order: str
    problem: str = ""
    """The fields of the form that could not be used, and why."""


@dataclass(frozen=True, slots=True)
class FoundPage:
    """One page of the hits of a query."""

    rows: list[dict[str, Any]]
    total: int
    reward_mean: float | None
    by_status: list[tuple[str, int]]
    page: int
    rewards: Histogram | None

    @property
    def pages(self) -> int:
        return max(1, math.ceil(self.total / PAGE_ROWS))


def read_query(form: Mapping[str, str]) -> Query:
    """Return the filter that a form has; a field that cannot be read is named and left out."""
    fields = {name: form.get(name, "").strip()[:MAX_TEXT] for name in FIELDS}
    conditions, parameters, problems = ["true"], [], []
    for name, (condition, kind) in _READERS.items():
        if not fields[name]:
            continue
        try:
            value = kind(fields[name])
            if kind is not str and not -MAX_WHOLE < value < MAX_WHOLE:
                raise ValueError
        except ValueError:
            problems.append(f"{name.replace('_', ' ')}: {fields[name][:40]!r} is not a number")
        else:
            conditions.append(condition)
            parameters.append(value)
    for word in words_of(fields["failure"]):
        conditions.append("contains(lower(failure), ?)")
        parameters.append(word)
    needles = tuple(words_of(fields["text"]))
    order = ORDERS.get(fields["order"], ORDERS["newest"])
    return Query(fields, " AND ".join(conditions), tuple(parameters), needles, order, "; ".join(problems))


def words_of(text: str) -> list[str]:
    """Return the texts that must occur, in lower case; what stands in double quotes is one."""
    words: list[str] = []
    for number, part in enumerate(text.lower().split('"')):
        words += [" ".join(part.split())] if number % 2 else part.split()
    return [word for word in words if word][:MAX_WORDS]


def search(index: EpisodeIndex, query: Query, page: int) -> FoundPage:
    """Return a page of the episodes that fit, pages counted from 1."""
    page = max(1, min(page, MAX_PAGE))
    with index.reading() as cursor:
        hits, values = _hits(cursor, query)
        total, mean = cursor.execute(f"SELECT count(*), avg(reward) FROM {hits}", values).fetchone()  # noqa: S608
        sql = f"SELECT status, count(*) FROM {hits} GROUP BY ALL ORDER BY ALL"  # noqa: S608
        by_status = cursor.execute(sql, values).fetchall()
        sql = f"SELECT place FROM {hits} ORDER BY {query.order}, place LIMIT {PAGE_ROWS} OFFSET ?"  # noqa: S608
        places = [place for (place,) in cursor.execute(sql, [*values, (page - 1) * PAGE_ROWS]).fetchall()]
        numbers = ", ".join(map(str, places or [-1]))
        rewards = _histogram(cursor, hits, values)
        by_place = {row["rowid"]: row for row in _rows(cursor, f"rowid IN ({numbers})", [])}
    return FoundPage([by_place[place] for place in places], total, mean, by_status, page, rewards)


def _histogram(cursor: Any, hits: str, values: list[Any]) -> Histogram | None:
    """Count the hits by ranges of their reward; None if none has one."""
    drawn = f"FROM {hits} WHERE reward IS NOT NULL"
    low, high = cursor.execute(f"SELECT min(reward), max(reward) {drawn}", values).fetchone()
    if low is None:
        return None
    edges = ticks(low, high, MAX_COLUMNS)
    sql = f"SELECT least(floor((reward - ?) / ? + 1e-9)::INT, ?), count(*) {drawn} GROUP BY ALL"
    options = [edges[0], edges[1] - edges[0], len(edges) - 2]
    return histogram(edges, dict(cursor.execute(sql, [*options, *values]).fetchall()))


def _hits(cursor: Any, query: Query) -> tuple[str, list[Any]]:
    """Return a table of hits, and its parameters.

    Words are looked for once, and kept in a table; without words a query is quicker than that table.
    """
    hits = f"SELECT {_HIT} FROM episode WHERE {query.where}{_contains(query)}"  # noqa: S608
    values = [*query.parameters, *query.needles]
    if not query.needles:
        return f"({hits})", values
    cursor.execute(f"CREATE TEMP TABLE hits AS {hits}", values)
    return "hits", []


def _contains(query: Query) -> str:
    return " AND contains(words, ?)" * len(query.needles)


def _rows(cursor: Any, where: str, parameters: list[Any]) -> list[dict[str, Any]]:
    names = ("rowid", *SHOWN)
    cursor.execute(f"SELECT {', '.join(names)} FROM episode WHERE {where}", parameters)  # noqa: S608
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def group_rows(
    index: EpisodeIndex, split: str, iteration: int, task_id: str, group: int
) -> list[dict[str, Any]]:
    """Return the rows of a group's siblings, in the order of their attempts."""
    where = "split = ? AND iteration = ? AND task_id = ? AND group_index = ? ORDER BY attempt LIMIT 256"
    with index.reading() as cursor:
        return _rows(cursor, where, [split, iteration, task_id, group])


def places_of(index: EpisodeIndex, query: Query) -> Iterator[tuple[str, str, int, int]]:
    """Yield (split, file, begin, size) of every episode that fits."""
    sql = f"""SELECT split, file, begin, size FROM episode WHERE {query.where}{_contains(query)}
              ORDER BY rowid"""  # noqa: S608
    with index.reading() as cursor:
        cursor.execute(sql, [*query.parameters, *query.needles])
        while places := cursor.fetchmany(1000):
            yield from places


def choices(index: EpisodeIndex) -> dict[str, list[str]]:
    """Return what there is to choose from, for the form."""
    with index.reading() as cursor:
        sql = "SELECT DISTINCT {} FROM episode ORDER BY 1 LIMIT 50"
        return {
            name: [str(value) for (value,) in cursor.execute(sql.format(name)).fetchall()]
            for name in ("difficulty", "env")
        }


def worst_tasks(index: EpisodeIndex, threshold: float) -> list[tuple[str, str, int, float, float]]:
    """Return task, prompt, episodes, success rate and mean reward of the newest training, worst first."""
    sql = """WITH recent AS (SELECT DISTINCT iteration FROM episode WHERE split = 'train'
                             ORDER BY iteration DESC LIMIT ?)
             SELECT task_id, any_value(prompt), count(*),
                    avg((reward >= ? - 1e-9)::INT) AS success, avg(reward)
             FROM episode WHERE split = 'train' AND reward IS NOT NULL AND iteration IN (FROM recent)
             GROUP BY task_id ORDER BY success, avg(reward), task_id LIMIT ?"""
    with index.reading() as cursor:
        rows: list[tuple[str, str, int, float, float]]
        rows = cursor.execute(sql, [RECENT_ITERATIONS, threshold, MAX_TASKS]).fetchall()
        return rows


@dataclass(frozen=True, slots=True)
class Flips:
    """The tasks that one of the last two evaluations solved: with half or more of their episodes."""

    evaluations: tuple[int, int]
    """The iterations of both."""
    lost: int
    gained: int
    rows: list[tuple[str, str, float, float]]
    """Task, prompt, and success rate in both; lost tasks first, at most `MAX_TASKS` of each kind."""


def flips(index: EpisodeIndex, threshold: float) -> Flips | None:
    """Return the tasks whose result differs between the last two evaluations; None before the second."""
    iterations = "SELECT DISTINCT iteration FROM episode WHERE split = 'test' ORDER BY iteration DESC LIMIT 2"
    sql = """WITH result AS (
                 SELECT task_id, any_value(prompt) AS prompt,
                        avg((reward >= $1 - 1e-9)::INT) FILTER (iteration = $2) AS before,
                        avg((reward >= $1 - 1e-9)::INT) FILTER (iteration = $3) AS after
                 FROM episode WHERE split = 'test' AND iteration IN ($2, $3) GROUP BY task_id)
             FROM result WHERE (before >= 0.5) <> (after >= 0.5) ORDER BY task_id"""
    with index.reading() as cursor:
        newest = [iteration for (iteration,) in cursor.execute(iterations).fetchall()]
        if len(newest) < 2:
            return None
        rows = cursor.execute(sql, [threshold, newest[1], newest[0]]).fetchall()
    lost, gained = [row for row in rows if row[3] < 0.5], [row for row in rows if row[3] >= 0.5]
    shown = lost[:MAX_TASKS] + gained[:MAX_TASKS]
    return Flips((newest[1], newest[0]), len(lost), len(gained), shown)
