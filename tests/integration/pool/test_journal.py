"""The journal: whole at every instant, bounded, patient with a full disk."""

import asyncio
import errno
import json
import os

import pytest

from rl_agent.errors import StoreError
from rl_agent.pool.runtime import journal as journal_module
from rl_agent.pool.runtime.journal import Journal
from rl_agent.testing.pool_setup import expected, item, manager, read_journal
from rl_agent.testing.simulated_engine import Behaviour
from rl_agent.testing.streaming_engine import StreamingEngine, serving


async def write(journal: Journal, play) -> None:
    """Let `play` use a journal that runs."""
    async with asyncio.TaskGroup() as jobs:
        writer = jobs.create_task(journal.run())
        await play()
        writer.cancel()


def numbers(path) -> list[int]:
    return [record["n"] for record in read_journal(path)]


async def test_what_is_appended_during_a_compaction_follows_it(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path, compact_bytes=100)

    async def play() -> None:
        await journal.commit({"n": n, "filler": "x" * 50} for n in range(10))
        assert journal.is_due
        journal.compact([{"n": 100}])
        assert not journal.is_due
        for n in range(101, 120):
            await journal.commit([{"n": n}])
        while (tmp_path / "journal.tmp").exists() or numbers(path)[0] != 100:
            await journal.commit([])
            await asyncio.sleep(0.01)
        await journal.commit([{"n": 120}])

    await write(journal, play)
    assert numbers(path) == list(range(100, 121))


async def test_a_compaction_without_room_leaves_the_old_journal_in_use(tmp_path, monkeypatch):
    path = tmp_path / "journal"
    journal = Journal(path, compact_bytes=1)

    def is_full(*_) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal_module, "_write_new", is_full)

    async def play() -> None:
        await journal.commit([{"n": 1}])
        journal.compact([{"n": 100}])
        await journal.commit([{"n": 2}])
        await asyncio.sleep(0.05)
        await journal.commit([{"n": 3}])

    await write(journal, play)
    assert numbers(path) == [1, 2, 3]


@pytest.fixture
def full_disk(monkeypatch):
    """A disk that takes three bytes of each write and no more, until told that there is room."""
    state = {"is_full": True, "tries": 0}
    real = os.write

    def write_some(descriptor: int, content) -> int:
        if not state["is_full"]:
            return real(descriptor, content)
        state["tries"] += 1
        if state["tries"] % 2:
            return real(descriptor, content[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal_module.os, "write", write_some)
    monkeypatch.setattr(journal_module, "FULL_RETRY_S", 0.01)
    return state


async def test_with_a_full_disk_a_commit_waits_and_leaves_no_half_record(tmp_path, full_disk):
    path = tmp_path / "journal"
    journal = Journal(path, compact_bytes=1e9)

    async def play() -> None:
        async with asyncio.TaskGroup() as jobs:
            waiting = jobs.create_task(journal.commit([{"n": 1}]))
            while full_disk["tries"] < 6:  # noqa: ASYNC110 - what is waited for is not an event
                await asyncio.sleep(0.01)
            assert not waiting.done()
            full_disk["is_full"] = False
        await journal.commit([{"n": 2}])

    await write(journal, play)
    assert numbers(path) == [1, 2]


async def test_a_disk_that_stays_full_ends_the_manager_in_words(tmp_path, full_disk, monkeypatch):
    monkeypatch.setattr(journal_module, "FULL_LIMIT_S", 0.05)
    journal = Journal(tmp_path / "journal", compact_bytes=1e9)
    journal.append([{"n": 1}])
    with pytest.raises(StoreError, match="cannot be written: No space left on device"):
        await journal.run()
    assert (tmp_path / "journal").read_bytes() == b""


def journalled(path) -> set[str]:
    """Requests of which some tokens are in the journal."""
    return {record["id"] for record in read_journal(path) if record["kind"] == "progress"}


async def test_a_restarted_manager_has_the_tokens_that_were_made(tmp_path):
    words = (f"journal={tmp_path / 'journal'}", "journal_interval_s=0.05", "stream_interval=1")
    async with serving(StreamingEngine(Behaviour(), interval_s=0.005)) as a:
        async with manager(*words) as pool:
            await pool.join(a.url)
            await pool.submit("run", [400] * 4)
            await pool.until(lambda: len(journalled(tmp_path / "journal")) == 4)
        made = {r.request_id.name: len(r.token_ids) for r in pool.state.requests.values()}
        async with manager(*words) as pool:
            again = {r.request_id.name: len(r.token_ids) for r in pool.state.requests.values()}
            assert all(0 < again[name] <= made[name] for name in made)
            await pool.join(a.url)
            samples = await pool.samples("run", at_least=4)
        assert all(s["token_ids"] == expected(400, int(s["id"][1:])) for s in samples)
        assert all(s["moves"] == 1 and len(s["logprobs"]) == 400 for s in samples)
        assert all([span["start"] for span in s["spans"]] == [0, again[s["id"]]] for s in samples)
        assert not a.engine.is_continuing_wrongly


async def test_a_journal_in_use_stays_bounded(tmp_path):
    path = tmp_path / "journal"
    words = (f"journal={path}", "journal_interval_s=0.02", "journal_compact_mib=0.03")
    async with serving(StreamingEngine(Behaviour())) as a:
        async with manager(*words) as pool:
            await pool.join(a.url)
            cursor, largest = 0, 0
            for number in range(40):
                items = [item(20 * number + n, 50, group="g") for n in range(20)]
                await pool.call("POST", "/runs/run/requests", {"requests": items, "holds_groups": True})
                found = await pool.samples("run", cursor, at_least=20)
                assert len(found) == 20
                cursor = found[-1]["cursor"]
                largest = max(largest, path.stat().st_size)
            written = 40 * 20 * 1000
        assert largest < written / 2
        async with manager(*words) as pool:
            assert len(pool.batches.runs["run"].ids) == 800
            assert [s["cursor"] for s in await pool.samples("run", cursor - 20)] == list(
                range(cursor - 19, cursor + 1)
            )
    assert json.loads(path.read_text().splitlines()[0])["kind"] in ("model", "run")
