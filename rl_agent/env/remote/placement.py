"""Decides which worker or server gets the next episode, and when a worker is replaced. Pure.

A worker that crashed or hung took its other episodes with it, and any of them may have been the reason. Each
is tried again among fewer others, in workers of their own: level 0 takes all, level 1 a few, level 2 one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_A_WORKER = (10**6, 4, 1)
"""Instances in one worker, by level."""


def level_of(crashes: int) -> int:
    """Return the level of an episode whose workers have crashed so often."""
    return min(crashes, len(MOST_A_WORKER) - 1)


def workers_of_level(level: int, workers: int) -> int:
    """Return how many processes a level may have: the suspects beside the others, at most half as many."""
    return workers if level == 0 else max(1, workers // 2)


def least_loaded(loads: Sequence[int], most: int) -> int | None:
    """Return the index of the least load below `most`; None if there is none."""
    index = min(range(len(loads)), key=loads.__getitem__, default=None)
    return index if index is not None and loads[index] < most else None


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Limits after which a worker is replaced: `env_config.worker_…`."""

    workers: int
    timeout_s: float
    max_episodes: int
    max_age_s: float
    max_rss_mib: float


def reason_to_replace(limits: WorkerLimits, *, episodes: int, age_s: float, rss_mib: float) -> str:
    """Return why a worker is to take no more episodes; empty where it may."""
    if episodes >= limits.max_episodes:
        return f"it has run {episodes} episodes"
    if age_s >= limits.max_age_s:
        return f"it is {age_s:.0f} s old"
    if rss_mib >= limits.max_rss_mib:
        return f"it uses {rss_mib:.0f} MiB"
    return ""


def is_out_of_bounds(limits: WorkerLimits, rss_mib: float) -> bool:
    """Return whether a worker uses so much memory that waiting for its episodes may cost the machine."""
    return rss_mib >= 2 * limits.max_rss_mib


def freest(places: Iterable[tuple[str, int, int]]) -> str | None:
    """Return the server with most of its places free, of (name, used, total); None if all are taken."""
    free = [((total - used) / total, name) for name, used, total in places if used < total]
    return max(free)[1] if free else None
