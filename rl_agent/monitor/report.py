"""Prints tables at the end of a run: reward per iteration, and seconds per kind of work."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from rl_agent.monitor import metrics
from rl_agent.monitor.attempts import Estimate, estimates_of
from rl_agent.paths import RunPaths
from rl_agent.system.files import whole_lines
from rl_agent.system.terminal import one_line
from rl_agent.types import EpisodeCounts, Split, Status


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """A timed piece of a run, in seconds since the epoch."""

    name: str
    iteration: int
    start: float
    end: float


TIMED = ("engine_start", "weights_swap", "rollout", "evaluate", "update")
"""Spans of the timeline that follow one another and make up an iteration; the others are parts of them."""
MAX_REASON = 1000
Row = dict[str, Any]
"""The merged records of an iteration."""

DIFFERENCE = "trainer/logprob_difference"
SAMPLES = "samples\ntrained"
COLUMNS = {
    "test\nversion": "test/weight_version",
    "test\nsuccess": "test/success_rate",
    "test\nreward": "test/reward_mean",
    "train\nsuccess": "train/success_rate",
    "train\nreward": "train/reward_mean",
    "train\nepisodes": "train/episodes",
    SAMPLES: "update/samples",
    "\nloss": "update/loss",
}
"""Headings of the table of rewards, in two lines so that it fits a terminal of 80 columns."""


def by_iteration(records: Iterable[dict[str, Any]]) -> dict[int, Row]:
    """Merge the records of each iteration; of a repeated iteration the later record counts."""
    rows: dict[int, Row] = {}
    for record in records:
        merge(rows, record)
    return dict(sorted(rows.items()))


def merge(rows: dict[int, Row], record: dict[str, Any]) -> None:
    """Merge a record into the row of its iteration.

    How far trainer and engine differ is told by an iteration's first step: the others come after updates.
    """
    if "iteration" not in record:
        return
    row = rows.setdefault(int(record["iteration"]), {})
    first = row.get(DIFFERENCE)
    row.update(record)
    if first is not None and record.get("trainer/updates_since_sampling"):
        row[DIFFERENCE] = first


def headings(rows: Mapping[int, Row]) -> list[str]:
    """Return the headings of COLUMNS, with what a sample is in this run.

    Only LLaMA-Factory's updates choose among candidates: steps. GRPO trains on whole episodes.
    """
    updates = [row for row in rows.values() if COLUMNS[SAMPLES] in row]
    units = {"steps" if "update/candidates" in row else "episodes" for row in updates}
    unit = units.pop() if len(units) == 1 else "samples"
    return [heading if heading != SAMPLES else heading.replace("samples", unit) for heading in COLUMNS]


def leading(rows: Mapping[int, Row], split: Split) -> str:
    """Return the metric that shows the progress of a split: success, or reward where none succeeds."""
    success, reward = f"{split}/success_rate", f"{split}/reward_mean"
    has_reward = any(row.get(reward) for row in rows.values())
    return reward if has_reward and not any(row.get(success) for row in rows.values()) else success


def reward_table(rows: dict[int, Row]) -> Table:
    """Make the table of success and, where they are not 0 and 1, rewards: a row for each iteration."""
    columns = [
        (heading, key)
        for heading, key in zip(headings(rows), COLUMNS.values(), strict=True)
        if not _repeats_success(rows, key)
    ]
    has_rewards = any(key.endswith("/reward_mean") for _, key in columns)
    title = f"success rate{' and mean reward' if has_rewards else ''} of each iteration"
    table = Table(title=title, box=box.SIMPLE, collapse_padding=True, pad_edge=False, show_edge=False)
    for heading in ("\niteration", *(heading for heading, _ in columns)):
        table.add_column(heading, justify="right", no_wrap=True)
    for iteration, row in rows.items():
        table.add_row(str(iteration), *(_cell(row.get(key)) for _, key in columns))
    return table


def _repeats_success(rows: Mapping[int, Row], key: str) -> bool:
    """Return whether a metric is the mean reward of a split, and its success rate in every row as shown."""
    split, _, name = key.partition("/")
    success = f"{split}/success_rate"
    return name == "reward_mean" and all(
        _cell(row.get(key)) == _cell(row.get(success)) for row in rows.values()
    )


def attempts_table(rows: dict[int, Row]) -> Table | None:
    """Make the table of pass@k and avg@k with 95 % intervals, the test sets side by side.

    None if no evaluation tried a task twice and none has named test sets.
    """
    estimates = {
        iteration: {name: estimates_of(tried) for name, tried in row["test/outcomes"].items()}
        for iteration, row in rows.items()
        if "test/outcomes" in row
    }
    names = sorted({name for sets in estimates.values() for name in sets})
    measures = dict.fromkeys(
        estimate.name for sets in estimates.values() for some in sets.values() for estimate in some
    )
    if len(names) < 2 and len(measures) < 2:
        return None
    table = Table(title="test tasks solved, with 95 % confidence intervals", box=box.SIMPLE)
    table.add_column("iteration", justify="right")
    table.add_column("measure")
    for name in names:
        table.add_column(escape(name) or "all tasks", justify="right")
    for iteration, sets in estimates.items():
        for measure in measures:
            cells = (
                next((estimate for estimate in sets.get(name, ()) if estimate.name == measure), None)
                for name in names
            )
            table.add_row(str(iteration), measure, *map(_estimate, cells))
    return table


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    interval = estimate.interval
    return f"{estimate.value:.3f}" + (f" ({interval[0]:.3f}-{interval[1]:.3f})" if interval else "")


def count_episodes(rows: Mapping[int, Row]) -> EpisodeCounts:
    """Count the episodes of all rollouts and evaluations."""
    submitted, ended = 0, Counter[Status]()
    for row, split in product(rows.values(), ("train", "test")):
        episodes = row.get(f"{split}/episodes", 0)
        submitted += int(row.get(f"{split}/submitted") or episodes)
        for status in Status:
            ended[status] += round(episodes * row.get(f"{split}/{status}_share", 0.0))
    return EpisodeCounts(submitted, ended)


def failure_lines(rows: dict[int, Row]) -> list[str]:
    """Return the commonest reasons of each split whose newest iteration has failures, a line each."""
    lines = []
    for split in ("train", "test"):
        collected = [iteration for iteration, row in rows.items() if f"{split}/episodes" in row]
        iteration = max(collected, default=0)
        row = rows.get(iteration, {})
        if reasons := row.get(f"{split}/commonest_failures"):
            episodes = row.get(f"{split}/episodes", 0)
            failed = round(episodes * (1 - row.get(f"{split}/completed_share", 0.0)))
            lines.append(
                f"{split} iteration {iteration}: {failed:,.0f} of {episodes:,.0f} episodes have no reward,"
                f" most often: {'; '.join(one_line(str(reason))[:MAX_REASON] for reason in reasons)}"
            )
    return lines


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) > 1 else f"{value:.3f}"


def read_timeline(path: Path) -> list[TimelineSpan]:
    """Read the spans of `timeline.jsonl`, oldest first; skip damaged lines. Raises OSError."""
    return [span for span in map(span_of, whole_lines(path)) if span is not None]


def span_of(line: bytes) -> TimelineSpan | None:
    """Parse a line of `timeline.jsonl`; None if it is damaged."""
    record = metrics.parse(line)
    if record is None:
        return None
    return TimelineSpan(record["name"], record["iteration"], record["start"], record["end"])


def by_name(spans: Iterable[TimelineSpan]) -> dict[str, list[TimelineSpan]]:
    """Return the spans of each kind of work, in order of first appearance."""
    spans_by_name: dict[str, list[TimelineSpan]] = {}
    for span in spans:
        spans_by_name.setdefault(span.name, []).append(span)
    return spans_by_name


def labels_of(named: Mapping[str, Sequence[TimelineSpan]]) -> dict[str, str]:
    """Return for each name `name (in update)` where each span of it is part of an update, else the name.

    Those seconds count twice.
    """
    labels = {}
    for name, parts in named.items():
        outer = [other for other in TIMED if other in named and name not in TIMED]
        around = (other for other in outer if all(_is_within(part, named[other]) for part in parts))
        labels[name] = next((f"{name} (in {other})" for other in around), name)
    return labels


def _is_within(part: TimelineSpan, spans: Sequence[TimelineSpan]) -> bool:
    """Return whether the last of some spans, one after the other, that begins before a part contains it."""
    before = bisect_right(spans, part.start, key=lambda span: span.start)
    return before > 0 and spans[before - 1].end >= part.end


def timeline_table(spans: list[TimelineSpan]) -> Table:
    """Make the table of seconds by kind of work, in order of first appearance."""
    table = Table("what", title="where the time went", box=box.SIMPLE)
    for heading in ("times", "seconds", "mean"):
        table.add_column(heading, justify="right")
    named = by_name(spans)
    labels = labels_of(named)
    for name, work_spans in named.items():
        seconds = [span.end - span.start for span in work_spans]
        mean_s = sum(seconds) / len(seconds)
        row = (str(len(seconds)), f"{sum(seconds):.1f}", f"{mean_s:.1f}")
        table.add_row(escape(labels[name]), *row)
    return table


def reward_rows(paths: RunPaths) -> dict[int, dict[str, float]]:
    """Read the metrics of each iteration from `metrics.jsonl`."""
    return by_iteration(metrics.read(paths.metrics))
