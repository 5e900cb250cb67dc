"""Says when rollout machines come and go: by a trace, or by the PolyRL artifact's schedule. Pure.

A trace is CSV with a header, `time_s,change[,how]`: +1 one machine more, -1 one less; `how` is `notice` (told
to leave first) or `kill` (the default: gone at once).
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from rl_agent.config.sections.base import MAX_SECONDS
from rl_agent.errors import UsageError

STEP_S = 1800.0
MOST = 4


@dataclass(frozen=True, slots=True)
class Change:
    at_s: float
    is_join: bool
    with_notice: bool = False


def read_trace(lines: Iterable[str], name: str) -> list[Change]:
    """Read a trace. Raises UsageError that names the line."""
    rows = csv.DictReader(lines)
    if not {"time_s", "change"} <= set(rows.fieldnames or ()):
        raise UsageError(f"{name}: expected a header time_s,change[,how]")
    changes = []
    for number, row in enumerate(rows, start=2):
        how = (row.get("how") or "kill").strip()
        change = (row["change"] or "").strip()
        try:
            at_s = float(row["time_s"])
        except (TypeError, ValueError):
            at_s = -1.0
        if not 0 <= at_s < MAX_SECONDS or change not in ("+1", "-1", "1") or how not in ("notice", "kill"):
            raise UsageError(f"{name}:{number}: expected SECONDS,+1 or SECONDS,-1,notice|kill")
        changes.append(Change(at_s, change != "-1", how == "notice"))
    return sorted(changes, key=lambda change: change.at_s)


def read_trace_file(path: Path) -> list[Change]:
    """Read the file of `--trace`. Raises UsageError that names the flag or the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"--trace {path} cannot be read: {why}") from error
    return read_trace(lines, str(path))


def step_schedule() -> Iterator[Change]:
    """Yield one machine more every half hour up to four; then the oldest goes, and one comes again."""
    for number in range(MOST):
        yield Change(number * STEP_S, is_join=True)
    for number in count():
        yield Change((MOST + 2 * number) * STEP_S, is_join=False)
        yield Change((MOST + 2 * number + 1) * STEP_S, is_join=True)
