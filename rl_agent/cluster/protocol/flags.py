"""The files that record finished phases: `flags/<run>/<attempt>/<iteration>/<phase>/`.

Each rank writes its flag there, and the master its decision, whole and never deleted: a reader that sees a
file may rely on it. The progress of an iteration is the union over all attempts of its run, with any numbers
of nodes.
"""

import json
import time
from pathlib import Path
from typing import Any

_FINISHED = ("done", "skipped", "failed")


def flag_record(rank: int, outcome: str) -> dict[str, Any]:
    """Return the content of `rank-<r>.json`; its time is for people, and never compared across hosts."""
    return {"rank": rank, "outcome": outcome, "finished_at": time.time()}


def finished_phases(flags_dir: Path, run_id: str, attempt: int) -> dict[int, set[str]]:
    """Return the decided phases of each iteration, over all attempts of a run; `lost` ones do not count.

    A failed phase counts, so that the loop continues after it; but if it was the last phase of an earlier
    attempt, this attempt repeats it.
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
