"""A manager's journal in use: what a restarted manager goes on from."""

from tests.support.pool_setup import are_exact, item, manager
from tests.support.simulated_engine import Behaviour
from tests.support.streaming_engine import StreamingEngine, serving


async def test_a_restarted_manager_has_the_tokens_that_were_made(tmp_path):
    words = (f"journal={tmp_path / 'journal'}", "journal_interval_s=0.05", "stream_interval=1")
    async with serving(StreamingEngine(Behaviour(), interval_s=0.005)) as a:
        async with manager(*words) as pool:
            await pool.join(a.url)
            await pool.submit("run", [400] * 4)
            await pool.until(lambda: len(pool.runtime.calls._saved) == 4)
            await pool.runtime._journal.commit()
        before = {r.request_id.name: len(r.token_ids) for r in pool.state.requests.values()}
        async with manager(*words) as pool:
            again = {r.request_id.name: len(r.token_ids) for r in pool.state.requests.values()}
            assert all(0 < again[name] <= before[name] for name in before)
            await pool.join(a.url)
            samples = await pool.samples("run", at_least=4)
        assert are_exact(samples, 400)
        assert all(s["moves"] == 1 and len(s["logprobs"]) == 400 for s in samples)
        assert all([span["start"] for span in s["spans"]] == [0, again[s["id"]]] for s in samples)
        assert not a.engine.is_continuing_wrongly


async def test_progress_due_while_an_end_is_written_leaves_a_whole_journal(tmp_path):
    words = (f"journal={tmp_path / 'journal'}", "journal_interval_s=0.02", "stream_interval=1")
    async with serving(StreamingEngine(Behaviour(), interval_s=0.005)) as a, manager(*words) as pool:
        await pool.join(a.url)
        runs, calls, journal = pool.runtime.runs, pool.runtime.calls, pool.runtime._journal
        commit, incomplete = runs._commit, []

        async def commit_then_progress(writes):
            await commit(writes)
            await commit([*calls._new_progress()])
            begun = "SELECT kind, run, id FROM progress WHERE start = 0"
            incomplete.extend(journal.rows(f"SELECT kind, run, id FROM progress EXCEPT {begun}"))

        runs._commit = commit_then_progress
        await pool.call("POST", "/runs/run/requests", {"requests": [item(n, 50) for n in range(8)]})
        assert len(await pool.samples("run", at_least=8)) == 8
    assert not incomplete
