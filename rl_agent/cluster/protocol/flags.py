"""Which phases are done: `flags/<run>/<attempt>/<iteration>/<phase>/`, written whole and never deleted.

Each rank leaves its flag there, and the master what it decided. Nothing has to settle: a reader that sees a
file may rely on it. An iteration's progress is the union over all attempts of its run, however many nodes
each of them had.
"""

import json
import time
from pathlib import Path
from typing import Any

_FINISHED = ("done", "skipped", "failed")


def flag_record(rank: int, outcome: str) -> dict[str, Any]:
    """What `rank-<r>.json` holds; the time is for people, and never compared across hosts."""
    return {"rank": rank, "outcome": outcome, "finished_at": time.time()}


def finished_phases(flags_dir: Path, run_id: str, attempt: int) -> dict[int, set[str]]:
    """Phases that were decided, by iteration, over all attempts of a run; those of lost nodes do not count.

    A phase that failed counts, so that a loop goes on behind it; but where it was the last thing an earlier
    attempt did, this attempt does it again.
    """
    finished: dict[int, set[str]] = {}
    failed: set[tuple[int, str]] = set()
    paths = (flags_dir / run_id).glob("*/*/*/decision.json")
    for path in sorted(paths, key=lambda path: int(path.parts[-4])):
        outcome = json.loads(path.read_text())["outcome"]
        if outcome not in _FINISHED:
            continue
        iteration, phase = int(path.parts[-3]), path.parts[-2]
        finished.setdefault(iteration, set()).add(phase)
        is_failed = outcome == "failed" and int(path.parts[-4]) < attempt
        failed.add((iteration, phase)) if is_failed else failed.discard((iteration, phase))
    newest = max(finished, default=0)
    for iteration, phase in failed:
        if iteration == newest:
            finished[iteration].discard(phase)
    return {iteration: phases for iteration, phases in finished.items() if phases}
