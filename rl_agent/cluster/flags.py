"""Phase flags: `flags/<run>/<attempt>/<iteration>/<phase>/rank-<r>.json`, one per rank that finished.

A flag is written whole (temp, fsync, rename) and never deleted, so a reader that sees it may rely on it and
nothing has to settle. An iteration's progress is the union over all attempts of its run.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rl_agent.errors import DeadlineError

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class FlagPlace:
    """Names the flags of one phase of one iteration; touches nothing."""

    attempt_dir: Path
    """`flags/<run>/<attempt>`."""
    iteration: int
    phase: str

    @property
    def folder(self) -> Path:
        return self.attempt_dir / str(self.iteration) / self.phase

    def of_rank(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.json"


@dataclass(frozen=True, slots=True)
class Flag:
    """What a rank says when it has finished a phase."""

    rank: int
    outcome: str
    """`done`, `skipped` (nothing to do) or `failed`."""
    finished_at: float
    """Seconds since the epoch, by the writer's clock; for people, never compared across hosts."""


def write_whole(path: Path, record: dict[str, Any]) -> None:
    """Write `record` so that a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(record, file)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def create_flag(place: FlagPlace, flag: Flag) -> Path:
    path = place.of_rank(flag.rank)
    write_whole(path, asdict(flag))
    return path


def present_ranks(place: FlagPlace) -> set[int]:
    """Ranks whose flag is there."""
    return {int(path.stem.removeprefix("rank-")) for path in place.folder.glob("rank-*.json")}


def wait_for_ranks(
    place: FlagPlace,
    num_ranks: int,
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once every rank has its flag; `DeadlineError` names the missing ranks after `timeout_s`."""
    deadline = clock() + timeout_s
    while missing := set(range(num_ranks)) - present_ranks(place):
        if clock() >= deadline:
            names = ", ".join(f"rank {rank}" for rank in sorted(missing))
            where = f"iteration {place.iteration}, phase {place.phase}"
            raise DeadlineError(f"{where}: waited {timeout_s:.0f} s for {names}; flags are in {place.folder}")
        sleep(_POLL_S)


def finished_phases(flags_dir: Path, run_id: str, num_ranks: int, attempt: int) -> dict[int, set[str]]:
    """Phases that every rank has finished, by iteration, over all attempts of a run.

    A phase that failed counts, so that a loop goes on behind it; but where it was the last thing an earlier
    attempt did, this attempt does it again.
    """
    ranks: dict[tuple[int, str], set[int]] = {}
    failed: set[tuple[int, str]] = set()
    for path in sorted((flags_dir / run_id).glob("*/*/*/rank-*.json"), key=lambda path: int(path.parts[-4])):
        key = (int(path.parts[-3]), path.parts[-2])
        ranks.setdefault(key, set()).add(int(path.stem.removeprefix("rank-")))
        is_failed = json.loads(path.read_text())["outcome"] == "failed" and int(path.parts[-4]) < attempt
        failed.add(key) if is_failed else failed.discard(key)
    newest = max((iteration for iteration, _ in ranks), default=0)
    finished: dict[int, set[str]] = {}
    for (iteration, phase), present in ranks.items():
        if len(present) >= num_ranks and not (iteration == newest and (iteration, phase) in failed):
            finished.setdefault(iteration, set()).add(phase)
    return finished
