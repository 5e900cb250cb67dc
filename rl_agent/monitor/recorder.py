"""Records `metrics.jsonl` with wandb, from its own process.

    metrics.jsonl ──follow──► record ──► wandb.log(step metric: iteration), and the curves now and then
         ▲                       │
     the loop appends        offset file: how far wandb has been told

The loop never waits for wandb: it only appends to a file. The offset is written after wandb took the line,
so a recorder that is started again goes on where the last one ended, and at worst repeats one line.
"""

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rl_agent.config import Plan
from rl_agent.files import write_whole
from rl_agent.monitor import curves
from rl_agent.monitor.wandb_mode import wandb_mode

POLL_S = 0.5
REDRAW_INTERVAL_S = 30.0

log = logging.getLogger(__name__)


def new_lines(path: Path, offset: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Whole lines of `path` after byte `offset`, each with the offset behind it."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield json.loads(line), offset


class Recorder:
    """Follows the metrics file and hands each record on, once.

    `log_record` receives a flat mapping of names to numbers; `offset_file` remembers the progress.
    """

    def __init__(self, metrics: Path, offset_file: Path, log_record: Callable[[dict[str, Any]], None]):
        self._metrics = metrics
        self._offset_file = offset_file
        self._log_record = log_record
        self._offset = int(offset_file.read_text()) if offset_file.exists() else 0

    def drain(self) -> int:
        """Hand on what is there now; returns how many records that was."""
        count = 0
        for record, offset in new_lines(self._metrics, self._offset):
            numbers = {k: v for k, v in record.items() if isinstance(v, int | float) and k != "time"}
            self._log_record(numbers)
            self._remember(offset)
            count += 1
        return count

    def follow(self, stopped: threading.Event, on_drained: Callable[[int], None]) -> None:
        """Drain until `stopped`, and once more after it; `on_drained` is told how many records came."""
        while not stopped.wait(POLL_S):
            on_drained(self.drain())
        self.drain()

    def _remember(self, offset: int) -> None:
        write_whole(self._offset_file, str(offset), is_durable=False)
        self._offset = offset


class CurvesRefresh:
    """Draws the curves again, now and then, while records come; in a thread, so that a stop need not wait."""

    def __init__(self, draw: Callable[[], object], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._draw = draw
        self._clock = clock
        self._is_stale = False
        self._not_before = -math.inf
        self.thread = threading.Thread()

    def __call__(self, num_new: int) -> None:
        self._is_stale |= num_new > 0
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


def record_run(plan: Plan, stopped: threading.Event) -> None:
    """Open the run's wandb record, follow its metrics until `stopped`, close the record."""
    import wandb

    config = plan.config
    chosen = wandb_mode(config.wandb, os.environ)
    log.info("wandb records %s (%s)", chosen.mode, chosen.reason)
    os.environ.update(chosen.variables)
    run = wandb.init(
        project=config.wandb.project,
        entity=config.wandb.entity,
        name=config.run_name,
        id=plan.run_id,
        resume="allow",
        dir=config.log_path,
        config=config.model_dump(mode="json", by_alias=True),
        mode=chosen.mode,  # type: ignore[arg-type]
        settings=wandb.Settings(console="off", silent=True),
    )
    run.define_metric("*", step_metric="iteration")
    for of_steps in ("update_step/*", "trainer/*"):
        run.define_metric(of_steps, step_metric="update_step")
    offset_file = config.paths.run_dir(plan.run_id) / "wandb.offset"
    paths = config.paths
    refresh = CurvesRefresh(lambda: curves.draw(paths.metrics, paths.curves, config.run_name))
    Recorder(paths.metrics, offset_file, run.log).follow(stopped, refresh)
    run.finish()
