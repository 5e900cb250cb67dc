"""An index of a store that is brought up to date."""

import time

from rl_agent.page.index import EpisodeIndex
from rl_agent.page.search import read_query, search


def follow(one: EpisodeIndex, expected: int | None = None) -> None:
    """Wait until it is up to date, and has so many episodes."""
    deadline = time.monotonic() + 30
    while not one.progress.is_up_to_date or (expected is not None and expected != count(one)):
        assert time.monotonic() < deadline, one.progress
        one.wake()
        time.sleep(0.01)


def count(one: EpisodeIndex) -> int:
    return search(one, read_query({}), 1).total


def found(one: EpisodeIndex, **fields: str) -> list[str]:
    rows = search(one, read_query(fields), 1).rows
    return [f"{row['task_id']}:{row['attempt']}" for row in rows]
