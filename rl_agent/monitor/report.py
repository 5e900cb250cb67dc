"""Prints tables at the end of a run: reward per iteration, and seconds per kind of work."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """A timed piece of a run, in seconds since the epoch."""

    name: str
    iteration: int
    start: float
    end: float


def by_iteration(records: Iterable[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """Merge the records of each iteration; of a repeated iteration the later record counts."""
    rows: dict[int, dict[str, float]] = {}
    for record in records:
        if "iteration" in record:
            rows.setdefault(int(record["iteration"]), {}).update(record)
    return dict(sorted(rows.items()))


def reward_table(rows: dict[int, dict[str, float]]) -> Table:
    """Make the table of rewards: a row for each iteration."""
    columns = {
        "evaluated": "test/success_rate",
        "reward": "test/reward_mean",
        "rollout": "train/success_rate",
        "episodes": "train/episodes",
        "trained on": "update/samples",
        "loss": "update/loss",
    }
    table = Table("iteration", *columns, title="success rate and reward per iteration")
    for iteration, row in rows.items():
        table.add_row(str(iteration), *(_cell(row.get(key)) for key in columns.values()))
    return table


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) > 1 else f"{value:.3f}"


def read_timeline(path: Path) -> list[TimelineSpan]:
    """Read the spans of `timeline.jsonl`, oldest first."""
    spans = (json.loads(line) for line in path.read_text().splitlines()) if path.exists() else ()
    return [TimelineSpan(s["name"], int(s["iteration"]), float(s["start"]), float(s["end"])) for s in spans]


def timeline_table(spans: list[TimelineSpan]) -> Table:
    """Make the table of seconds by kind of work, in order of first appearance."""
    table = Table("what", "times", "seconds", "mean", title="where the time went")
    for name in dict.fromkeys(span.name for span in spans):
        seconds = [span.end - span.start for span in spans if span.name == name]
        table.add_row(name, str(len(seconds)), f"{sum(seconds):.1f}", f"{sum(seconds) / len(seconds):.1f}")
    return table


def reward_rows(paths: RunPaths) -> dict[int, dict[str, float]]:
    """Read the metrics of each iteration from `metrics.jsonl`."""
    return by_iteration(metrics.read(paths.metrics))
