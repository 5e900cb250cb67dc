"""Reads the numbers of one run from its log path: as the files grow, each line once.

Only what is shown is kept, so that a run of a million steps costs no more memory than its curves.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote

from rl_agent.monitor import metrics
from rl_agent.monitor.curves import PANELS, Curve, Panel
from rl_agent.monitor.report import Row, TimelineSpan, merge, span_of
from rl_agent.paths import RunPaths
from rl_agent.system.files import read_object

MAX_POINTS = 20_000
"""Points of a curve that are kept; of a longer one every second point goes, as often as needed."""
MAX_SPANS = 20_000
HEAD_BYTES = 256


class Tail:
    """The whole lines of a file that grows; begun anew if another file takes its place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self._head = b""
        """First bytes of the file: a new one often gets the inode of the one that was deleted."""
        self._offset = 0

    def new(self, begin_anew: Callable[[], object]) -> Iterator[bytes]:
        """Yield the lines since the last call; `begin_anew` forgets what came from an earlier file."""
        try:
            file = self._path.open("rb")
        except OSError:
            return
        with file:
            status = os.fstat(file.fileno())
            head = file.read(HEAD_BYTES)
            is_other = status.st_ino != self._inode or not head.startswith(self._head)
            if is_other or status.st_size < self._offset:
                self._inode, self._offset = status.st_ino, 0
                begin_anew()
            self._head = head
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield line


@dataclass(slots=True)
class Numbers:
    """The numbers of `metrics.jsonl` that are shown."""

    rows: dict[int, Row] = field(default_factory=dict)
    """The merged lines of each iteration, as `report` has them."""
    points: dict[tuple[str, str], dict[float, float]] = field(default_factory=dict)
    """The curves of the panels by (x, name): of two lines with the same x the later one counts."""
    latest: dict[str, Any] = field(default_factory=dict)
    """The newest value of each metric."""
    costs: dict[tuple[str, object, object], float] = field(default_factory=dict)
    """Dollars by metric, iteration or step, and split: a repeated line counts once."""

    def add(self, record: dict[str, Any]) -> None:
        """Add a record of metrics."""
        merge(self.rows, record)
        self.latest |= record
        for panel in PANELS:
            if not isinstance(x := record.get(panel.x), int | float):
                continue
            for name in panel.labels(record):
                if isinstance(record[name], int | float):
                    points = self.points.setdefault((panel.x, name), {})
                    points[x] = record[name]
                    if len(points) > MAX_POINTS:
                        kept = sorted(points.items())[::2]
                        points.clear()
                        points.update(kept)
        for name, at in (("trainer/cost", "update_step"), ("train/judge_cost_usd", "iteration"),
                         ("test/judge_cost_usd", "iteration")):  # fmt: skip
            if isinstance(record.get(name), int | float):
                self.costs[name, record.get(at), record.get("split")] = record[name]

    def curves(self, panel: Panel) -> list[Curve]:
        """Return the curves of a panel that have a point."""
        points = {name: curve for (x, name), curve in self.points.items() if x == panel.x}
        return [
            Curve(label, tuple(sorted(points[name].items()))) for name, label in panel.labels(points).items()
        ]

    def cost(self, *names: str) -> float | None:
        """Return the dollars under these names; None if nothing was recorded."""
        spent = [dollars for (name, _, _), dollars in self.costs.items() if name in names]
        return sum(spent) if spent else None


class RunFolder:
    """One log path; every method may be called from any thread."""

    def __init__(self, name: str, log_path: Path) -> None:
        self.name = name
        self.slug = quote(name, safe="")
        self.paths = RunPaths(log_path)
        self._lock = Lock()
        self._metrics, self._timeline = Tail(self.paths.metrics), Tail(self.paths.timeline)
        self._numbers = Numbers()
        self._spans: list[TimelineSpan] = []
        self._left_out = 0

    def numbers(self) -> Numbers:
        """Return the numbers up to now, a copy that later calls leave alone."""
        with self._lock:
            for line in self._metrics.new(self._forget_numbers):
                if (record := metrics.parse(line)) is not None:
                    self._numbers.add(record)
            numbers = self._numbers
            return Numbers(
                {iteration: dict(row) for iteration, row in sorted(numbers.rows.items())},
                {key: dict(points) for key, points in numbers.points.items()},
                dict(numbers.latest),
                dict(numbers.costs),
            )

    def _forget_numbers(self) -> None:
        self._numbers = Numbers()

    def spans(self) -> tuple[list[TimelineSpan], int]:
        """Return the newest spans of the timeline, and how many older ones are left out."""
        with self._lock:
            for line in self._timeline.new(self._forget_spans):
                if (span := span_of(line)) is not None:
                    self._spans.append(span)
            extra = max(0, len(self._spans) - MAX_SPANS)
            self._left_out += extra
            del self._spans[:extra]
            return list(self._spans), self._left_out

    def _forget_spans(self) -> None:
        self._spans, self._left_out = [], 0

    def plan(self) -> dict[str, Any]:
        """Return the newest plan as plain values; empty if there is none that can be read."""
        return read_object(self.paths.log_path / "runs" / "latest" / "plan.json")


def value_at(value: Any, *keys: str) -> Any:
    """Return what stands at a path of keys in nested objects; None if it is not there."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
