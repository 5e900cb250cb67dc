"""Gathers what the view of the pool shows: the history that the manager writes, and its present status."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from rl_agent.monitor import metrics
from rl_agent.monitor.curves import Curve
from rl_agent.page.charts import (
    GANTT_WIDTH,
    LABEL_WIDTH,
    RIGHT,
    ROW_HEIGHT,
    Bar,
    GanttRow,
    chart,
    duration,
    time_ticks,
)
from rl_agent.page.run_folder import Numbers, RunFolder, Tail

AskManager = Callable[[], dict[str, Any]]
"""Returns the manager's status; raises HarnessError where it does not answer."""
HISTORIES = "pool-*.history.jsonl"
MAX_SAMPLES = 20_000
MAX_EVENTS = 5_000
SHOWN_EVENTS = 200
SHOWN_MOVES = 100
MAX_ENGINES = 60
SHOWN_ITERATIONS = 50
READY = "engines that are ready"
WEIGHT_BYTES = "weight_bytes"
CURVES = {
    "requests": {"waiting": "waiting for an engine", "running": "at engines"},
    READY: {"ready": "ready"},
    "requests that moved to another engine": {"moves": "moved, total"},
    "tokens per second": {"rate": "sampled"},
    "weight traffic to engines, in bytes, total": {
        f"{WEIGHT_BYTES}.trainer": "from the trainer",
        f"{WEIGHT_BYTES}.engines": "from other engines",
        f"{WEIGHT_BYTES}.manager": "from the manager",
        f"{WEIGHT_BYTES}.same_host": "from a trainer's store on the same host",
    },
}
RATES = ("tokens per second",)
STATES = {"registered": 5, "loading": 1, "ready": 2, "draining": 3}
"""Colour of each state."""
WEIGHTS = {
    "weights/": ("bytes", "snapshot_s", "pause_s", "load_s"),
    "update/": ("publish_s", "model_s"),
}
"""Figures of new weights by iteration: of an engine with `weights=inplace`, and of a streaming trainer, whose
bytes the engines of the pool report by route."""


@dataclass(slots=True)
class PoolRecord:
    """The content of a history, ready to be drawn."""

    samples: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    wanted: list[dict[str, Any]] = field(default_factory=list)
    """Changes of how many engines the pool wants."""
    moves: list[dict[str, Any]] = field(default_factory=list)
    """Requests that went on at another engine."""

    def add(self, line: dict[str, Any]) -> None:
        if "wanted" in line:
            self.wanted.append(line)
            self.wanted[:] = self.wanted[-MAX_EVENTS:]
        elif "moved" in line:
            self.moves.append(line)
            self.moves[:] = self.moves[-SHOWN_MOVES:]
        elif "engine" in line:
            self.events.append(line)
            if len(self.events) > MAX_EVENTS:
                self.events[:] = self.events[-MAX_EVENTS // 2 :]
        else:
            self.samples.append(line)
            if len(self.samples) > MAX_SAMPLES:
                self.samples[:] = self.samples[len(self.samples) % 2 :: 2]


class PoolHistoryReader:
    """The histories of a pool, one for each start, read as they grow; of the newest run of a log path."""

    def __init__(self, run: RunFolder) -> None:
        self._newest = run.paths.log_path / "runs" / "latest"
        self._folder = self._newest
        self._lock = Lock()
        self._tails: dict[Path, Tail] = {}
        self._record = PoolRecord()

    def record(self) -> PoolRecord:
        """Return what is recorded up to now."""
        with self._lock:
            if (folder := self._newest.resolve()) != self._folder:  # a new run is the newest now
                self._folder = folder
                self._tails, self._record = {}, PoolRecord()
            for path in sorted(self._folder.glob(HISTORIES)):
                tail = self._tails.setdefault(path, Tail(path))
                for line in tail.new(lambda: None):
                    if (entry := metrics.parse(line)) is not None:
                        self._record.add(entry)
            record = self._record
            kept = (record.samples, record.events, record.wanted, record.moves)
            return PoolRecord(*map(list, kept))

    def engine_names(self) -> dict[str, str]:
        """Return the names of engines by the beginnings of their ids."""
        return {str(event.get("id")): event["engine"] for event in self.record().events}


def pool_values(record: PoolRecord, numbers: Numbers, status: dict[str, Any] | None) -> dict[str, Any]:
    """Return everything that the view of the pool shows."""
    ats = [line["at"] for line in (*record.samples, *record.events, *record.wanted, *record.moves)]
    start, end = (min(ats), max(ats)) if ats else (0.0, 0.0)
    lanes, ticks, left_out = engine_lanes(record, start, end)
    return {
        "has_pool": bool(ats) or status is not None,
        "status": status,
        "newest": record.samples[-1] if record.samples else None,
        "lanes": lanes,
        "ticks": ticks,
        "lanes_left_out": left_out,
        "weight_bytes": _weight_bytes(record),
        "states": STATES,
        "charts": [
            diagram
            for title, labels in CURVES.items()
            if (
                diagram := chart(
                    title,
                    "minute",
                    [
                        *(Curve(label, _points(record, name, start)) for name, label in labels.items()),
                        *(
                            [Curve("wanted", _wanted_points(record, start, end))]
                            if title == READY and record.wanted
                            else []
                        ),
                    ],
                    counts=title not in RATES,
                )
            )
        ],
        "events": [
            {**event, "after": duration(event["at"] - start)}
            for event in reversed(record.events[-SHOWN_EVENTS:])
        ],
        "wanted": [
            {**line, "after": duration(line["at"] - start)}
            for line in reversed(record.wanted[-SHOWN_EVENTS:])
        ],
        "moves": [{**line, "after": duration(line["at"] - start)} for line in reversed(record.moves)],
        "weights": [
            (names, rows) for prefix, names in WEIGHTS.items() if (rows := _rows_of(numbers, prefix, names))
        ],
    }


def _weight_bytes(record: PoolRecord) -> list[tuple[str, float]]:
    """Return the weight traffic to engines by route, in bytes; empty before the first."""
    came = record.samples[-1].get(WEIGHT_BYTES, {}) if record.samples else {}
    labels = next(labels for labels in CURVES.values() if f"{WEIGHT_BYTES}.trainer" in labels)
    rows = [(label, came.get(name.partition(".")[2], 0)) for name, label in labels.items()]
    return rows if any(number for _, number in rows) else []


def _rows_of(numbers: Numbers, prefix: str, names: Sequence[str]) -> list[tuple[int, list[Any]]]:
    """Return the newest iterations that have the first of some numbers, with all of them."""
    return [
        (iteration, [row.get(f"{prefix}{name}") for name in names])
        for iteration, row in numbers.rows.items()
        if f"{prefix}{names[0]}" in row
    ][-SHOWN_ITERATIONS:]


def _points(record: PoolRecord, name: str, start: float) -> tuple[tuple[float, float], ...]:
    points: list[tuple[float, float]] = []
    before: dict[str, Any] | None = None
    for sample in record.samples:
        value = _value(sample, before, name)
        before = sample
        if value is not None:
            points.append(((sample["at"] - start) / 60, value))
    return tuple(points)


def _wanted_points(record: PoolRecord, start: float, end: float) -> tuple[tuple[float, float], ...]:
    """Return how many engines were wanted, as steps."""
    points: list[tuple[float, float]] = []
    for line in record.wanted:
        minute = (line["at"] - start) / 60
        if points:
            points.append((minute, points[-1][1]))
        points.append((minute, float(sum(line["wanted"].values()))))
    return (*points, ((end - start) / 60, points[-1][1])) if points else ()


def _value(sample: dict[str, Any], before: dict[str, Any] | None, name: str) -> float | None:
    if name == "waiting":
        return float(sample["open"] - sample["running"])
    if name == "ready":
        return float(sum(engine[0] == "ready" for engine in sample["engines"].values()))
    if name == "rate":
        if before is None or sample["at"] <= before["at"] or sample["tokens"] < before["tokens"]:
            return None
        return float((sample["tokens"] - before["tokens"]) / (sample["at"] - before["at"]))
    part, _, source = name.partition(".")
    return float(sample.get(part, {}).get(source, 0)) if source else float(sample[part])


def engine_lanes(
    record: PoolRecord, start: float, end: float
) -> tuple[list[tuple[GanttRow, list[int]]], Any, int]:
    """Return a lane for each engine, with its bars and their colours; the ticks; how many are left out."""
    changes: dict[str, list[tuple[float, str, str]]] = {}
    for event in record.events:
        words = (
            f"{event.get('state')}: {event.get('reason')}" if event.get("reason") else str(event.get("state"))
        )
        changes.setdefault(event["engine"], []).append((event["at"], str(event.get("state")), words))
    total = max(end - start, 1e-3)
    scale = (GANTT_WIDTH - LABEL_WIDTH - RIGHT) / total
    lanes = []
    names = list(changes)[-MAX_ENGINES:]
    for index, name in enumerate(names):
        bars, colours = [], []
        ends = [at for at, _, _ in changes[name][1:]] + [end]
        for (at, state, words), until in zip(changes[name], ends, strict=True):
            if state in STATES:
                x, width = LABEL_WIDTH + (at - start) * scale, max((until - at) * scale, 1.5)
                bars.append(Bar(round(x, 1), round(width, 1), f"{name} {words}, {duration(until - at)}"))
                colours.append(STATES[state])
        lanes.append((GanttRow(name, index * ROW_HEIGHT, tuple(bars)), colours))
    return lanes, time_ticks(total, scale), len(changes) - len(names)
