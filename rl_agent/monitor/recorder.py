"""Records `metrics.jsonl` with wandb, from its own process.

    metrics.jsonl ──follow──► record ──► wandb.log(step metric: iteration)
         ▲                       │
     the loop appends        offset file: how far wandb has been told

The loop never waits for wandb: it only appends to a file. The offset is written after wandb took the line,
so a recorder that is started again goes on where the last one ended, and at worst repeats one line.
"""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rl_agent.config import Plan
from rl_agent.monitor.wandb_mode import wandb_mode

POLL_S = 0.5

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

    def follow(self, stopped: threading.Event) -> None:
        """Drain until `stopped`, and once more after it."""
        while not stopped.wait(POLL_S):
            self.drain()
        self.drain()

    def _remember(self, offset: int) -> None:
        temporary = self._offset_file.with_suffix(".tmp")
        temporary.write_text(str(offset))
        temporary.rename(self._offset_file)
        self._offset = offset


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
    offset_file = config.paths.run_dir(plan.run_id) / "wandb.offset"
    Recorder(config.paths.metrics, offset_file, run.log).follow(stopped)
    run.finish()
