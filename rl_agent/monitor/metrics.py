"""Writes and reads `metrics.jsonl`, the metrics of a run: one JSON object per line.

wandb, curves and tables are made from this file, so a broken recorder never loses a metric and never delays
the loop.
"""

import errno
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_agent.system.files import whole_lines


def append(path: Path, record: dict[str, Any]) -> None:
    """Append a record as one line, in a single write, so that concurrent writers do not mix lines.

    A number that is not finite, as a mean over nothing, is left out because JSON cannot represent it.
    """
    finite = {k: v for k, v in record.items() if not isinstance(v, float) or math.isfinite(v)}
    line = json.dumps(finite, allow_nan=False, ensure_ascii=False).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        end = os.fstat(descriptor).st_size
        if end and os.pread(descriptor, 1, end - 1) != b"\n":  # the disk was full in the middle of a line
            line = b"\n" + line
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def parse(line: bytes) -> dict[str, Any] | None:
    """Parse a line of the file; None if it is damaged, as by a full disk."""
    try:
        record: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return record


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over the whole lines of the file, oldest first; skip torn and damaged ones. Raises OSError."""
    for line in whole_lines(path):
        if (record := parse(line)) is not None:
            yield record
