"""Everything goes wrong at once over real HTTP: each request still ends once, and completed ones are whole.

RL_AGENT_POOL_CHAOS=1000 runs so many seeds instead of a few, from RL_AGENT_POOL_CHAOS_FROM on. A seed that
fails draws the same faults again.
"""

import asyncio
import os

import pytest

from tests.support import pool_chaos
from tests.support.pool_chaos import Chaos

pytestmark = [
    pytest.mark.extended,
    pytest.mark.chaos,
    # Servers are torn down in the middle of accepting; the sockets that this leaves to the collector are the
    # test's own.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FIRST = int(os.environ.get("RL_AGENT_POOL_CHAOS_FROM", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("RL_AGENT_POOL_CHAOS", "12")))


@pytest.mark.parametrize("seed", SEEDS)
async def test_each_request_ends_once_and_whole_whatever_happens(seed, tmp_path):
    chaos = Chaos(seed, str(tmp_path / "journal.jsonl"))
    await chaos.run()
    chaos.check()


async def test_a_run_in_which_nothing_moves_any_more_is_found_out(tmp_path, monkeypatch):
    async def leave_it_without_engines(chaos, pool):
        await asyncio.Event().wait()

    monkeypatch.setattr(pool_chaos, "PATIENCE", 10)
    monkeypatch.setattr(Chaos, "trouble", leave_it_without_engines)
    hang = pytest.RaisesExc(AssertionError, match="nothing moves")
    with pytest.RaisesGroup(hang, flatten_subgroups=True):
        await Chaos(0, str(tmp_path / "journal.jsonl")).run()
