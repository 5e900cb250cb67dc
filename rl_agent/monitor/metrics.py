"""The run's numbers: one JSON object a line in `metrics.jsonl`.

Everything else (wandb, curves, tables) is made from this file, so a broken recorder never costs a number
and never holds up the loop.
"""

import errno
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
    line = json.dumps(record, allow_nan=False, ensure_ascii=False).encode() + b"\n"
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
    """A line of the file; None for one that is damaged, as by a full disk."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line of `path`, oldest first; a torn or damaged one is passed over."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n") and (record := parse(line)) is not None:
                yield record
