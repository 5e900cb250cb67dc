"""Records `metrics.jsonl` with wandb, from its own process.

    metrics.jsonl ──follow──► line k ──► step k of the wandb run, and the curves now and then
         ▲                                  │ fails: opened again later, from the step that wandb has
     the loop appends                       └ not available until the end: recorded offline

The loop never waits for wandb: it only appends to a file. The number of a line is its step, so that a line
that was not uploaded before a crash is sent again, and a line that wandb has is not sent twice.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rl_agent.config.plan import Plan
from rl_agent.errors import in_one_line
from rl_agent.monitor import curves, metrics
from rl_agent.monitor.attempts import estimates_of
from rl_agent.monitor.wandb_mode import NOT_INSTALLED, wandb_mode

POLL_S = 0.5
REDRAW_INTERVAL_S = 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0

log = logging.getLogger(__name__)


Samples = dict[str, list[dict[str, object]]]
"""A table's name, and its rows: some episodes of a rollout."""
FindSamples = Callable[[dict[str, Any]], Samples]
"""Takes a record of the metrics file; returns nothing for one that is not of a rollout."""


class Record(Protocol):
    """A run of wandb; any call may raise any exception, or take as long as wandb does."""

    @property
    def next_step(self) -> int:
        """The first step that it does not have."""

    def log(self, step: int, numbers: dict[str, float], samples: Samples) -> None: ...

    def close(self) -> None: ...


def numbers_of(line: bytes) -> dict[str, float]:
    """Return the numbers of a line, which are recorded; none of a damaged line."""
    record = metrics.parse(line) or {}
    numbers = {k: v for k, v in record.items() if isinstance(v, int | float) and k != "time"}
    return numbers | _intervals(record.get("test/outcomes"))


def _intervals(outcomes: object) -> dict[str, float]:
    """Return the bounds of pass@k and avg@k of each test set; empty for a record without an evaluation."""
    if not isinstance(outcomes, dict):
        return {}
    bounds: dict[str, float] = {}
    for name, tried in outcomes.items():
        prefix = f"test/set/{name}" if name else "test"
        for estimate in estimates_of(tried):
            if estimate.interval is not None:
                low, high = estimate.interval
                bounds |= {f"{prefix}/{estimate.name}_low": low, f"{prefix}/{estimate.name}_high": high}
    return bounds


class Recorder:
    """Sends each line of the metrics file to a wandb run, and opens another one when that fails."""

    def __init__(
        self,
        metrics_file: Path,
        open_record: Callable[[], Record],
        open_offline: Callable[[], Record],
        *,
        clock: Callable[[], float] = time.monotonic,
        find_samples: FindSamples = lambda record: {},
    ) -> None:
        self._find_samples = find_samples
        self._metrics = metrics_file
        self._open = open_record
        self._open_offline = open_offline
        self._clock = clock
        self._record: Record | None = None
        self._at = (0, 0)
        """Number and byte offset of the next line to send."""
        self._size_bytes = 0
        self._not_before = -math.inf
        self._pause_s = FIRST_PAUSE_S

    def drain(self) -> bool:
        """Send the new lines; return whether there were any, sent or not."""
        before, self._size_bytes = self._size_bytes, _size_of(self._metrics)
        if self._record is not None or self._clock() >= self._not_before:
            try:
                self._send_new()
                self._pause_s = FIRST_PAUSE_S
            except Exception as error:
                self._record = None
                self._not_before = self._clock() + self._pause_s
                log.warning("wandb: %s; retrying in %g s", in_one_line(error), self._pause_s)
                self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return self._size_bytes != before

    def follow(self, stopped: threading.Event, on_drained: Callable[[bool], None]) -> None:
        """Drain until `stopped`, and once more after it; `on_drained` is called with each result."""
        while not stopped.wait(POLL_S):
            on_drained(self.drain())
        self.drain()
        self._close()

    def _send_new(self) -> None:
        if self._record is None:
            record = self._open()
            self._at = (0, 0)
            self._record = record
        first = self._record.next_step if self._at == (0, 0) else 0
        number, offset = self._at
        for line in _lines(self._metrics, offset):
            if number >= first:
                self._record.log(number, numbers_of(line), self._samples_of(line))
            number, offset = number + 1, offset + len(line)
            self._at = (number, offset)

    def _samples_of(self, line: bytes) -> Samples:
        try:
            return self._find_samples(metrics.parse(line) or {})
        except Exception as error:  # episodes that cannot be read; the numbers count
            log.warning("no table of samples: %s", in_one_line(error))
            return {}

    def _close(self) -> None:
        """Close the wandb run; lines that could not be sent are recorded offline, for `wandb sync`."""
        if self._record is None:
            self._open, self._not_before = self._open_offline, -math.inf
            self.drain()
        try:
            if self._record is not None:
                self._record.close()
        except Exception as error:
            log.warning("wandb: %s", in_one_line(error))


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _lines(path: Path, offset: int) -> Iterator[bytes]:
    """Iterate over the whole lines after byte `offset`."""
    if path.exists():
        with path.open("rb") as file:
            file.seek(offset)
            yield from (line for line in file if line.endswith(b"\n"))


class CurvesRefresh:
    """Redraws the curves now and then while records come, in a thread, so that a stop does not wait."""

    def __init__(self, draw: Callable[[], object], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._draw = draw
        self._clock = clock
        self._is_stale = False
        self._not_before = -math.inf
        self.thread = threading.Thread()

    def __call__(self, is_new: bool) -> None:
        self._is_stale |= is_new
        if self._is_stale and self._clock() >= self._not_before and not self.thread.is_alive():
            self._is_stale = False
            self._not_before = self._clock() + REDRAW_INTERVAL_S
            self.thread = threading.Thread(target=self._try_to_draw, name="curves", daemon=True)
            self.thread.start()

    def _try_to_draw(self) -> None:
        try:
            self._draw()
        except Exception as error:  # the picture is drawn again; the record must go on
            log.warning("the curves could not be drawn: %r", error)


def record_run(plan: Plan, stopped: threading.Event, find_samples: FindSamples) -> None:
    """Record the run's metrics with wandb until `stopped`, whatever wandb and its server do."""
    from rl_agent.monitor.wandb_record import WandbRecord

    config, paths = plan.config, plan.config.paths
    chosen = wandb_mode(config.wandb, os.environ)
    log.info("wandb records %s (%s)", chosen.mode, chosen.reason)
    if chosen.reason == NOT_INSTALLED:
        stopped.wait()
        return
    os.environ.update(chosen.variables)
    refresh = CurvesRefresh(lambda: curves.draw(paths.metrics, paths.curves, config.run_name))
    in_mode = partial(WandbRecord, plan)
    recorder = Recorder(
        paths.metrics,
        partial(in_mode, chosen.mode),
        partial(in_mode, "offline"),
        find_samples=find_samples,
    )
    recorder.follow(stopped, refresh)
