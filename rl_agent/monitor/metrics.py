"""The run's numbers: one JSON object a line in `metrics.jsonl`.

Everything else (wandb, curves, tables) is made from this file, so a broken recorder never costs a number
and never holds up the loop.
"""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def append(path: Path, record: dict[str, Any]) -> None:
    """Append `record` as one line; a single write, so concurrent writers do not mix lines.

    A number that is not finite is left out: JSON has no word for it, and a mean over nothing ends no run.
    """
    record = {k: v for k, v in record.items() if not isinstance(v, float) or math.isfinite(v)}
    line = json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line of `path`, oldest first; a torn last line is passed over."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)
