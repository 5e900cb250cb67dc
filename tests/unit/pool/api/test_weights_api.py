"""Publishing weights over the manager's real HTTP: what workers are told, and what clients may ask for."""

import asyncio

from rl_agent.pool.runtime.journal import Journal
from rl_agent.pool.runtime.journal_rows import ProgressRow
from tests.support.pool_setup import collector, item, manager
from tests.support.simulated_engine import Behaviour
from tests.support.streaming_engine import StreamingEngine, serving

PATIENT = "lease_s=60"  # an engine stays, however late a busy machine sends its next heartbeat
DIGEST = "ab" * 32
OFFER = {
    "digest": DIGEST,
    "delta_digest": "ef" * 32,
    "sources": ["tcp://127.0.0.1:7000"],
    "transfer_token": "secret",
}


def engine():
    return StreamingEngine(Behaviour(), interval_s=0.002)


def published(version, **more):
    return OFFER | {"weight_version": version} | more


def having(version=1, **more):
    """A heartbeat of a worker whose engine serves a version."""
    return {"weights": {"weight_version": version, "digest": DIGEST, **more}}


FETCHED = {"weights": {"fetched_version": 1}}


async def test_workers_are_told_of_a_publish_in_the_answers_to_their_beats():
    async with manager(PATIENT) as pool, serving(engine()) as a:
        name = await pool.join(a.url)
        await pool.ready(1)
        status, answer = await pool.call("POST", "/weights", published(1))
        assert (status, answer) == (200, {"weight_version": 1, "is_accepted": True, "is_superseded": False})
        status, answer = await pool.call("POST", f"/engines/{name}/beat", {})
        assert answer["weights"] == published(1, useful_from=1, publisher_addresses=1, may_load=True)
        fetching = {"weights": {"is_fetching": True, "source": "tcp://127.0.0.1:9"}}
        status, answer = await pool.call("POST", f"/engines/{name}/beat", fetching)
        assert answer["weights"]["sources"] == []
        await pool.call("POST", f"/engines/{name}/beat", having(source="tcp://127.0.0.1:9"))
        status, answer = await pool.call("GET", "/status")
        assert (answer["weight_version"], answer["weights_digest"]) == (1, DIGEST)
        assert [(e["weight_version"], e["weights_digest"]) for e in answer["engines"]] == [(1, DIGEST)]
        assert "secret" not in str(answer)


async def test_workers_are_told_which_sources_are_the_publishers_own():
    own = ["tcp://127.0.0.1:7000", "tcp://127.0.0.2:7000"]
    async with manager(PATIENT) as pool, serving(engine()) as a, serving(engine()) as b:
        peer, other = await pool.join(a.url), await pool.join(b.url)
        await pool.ready(2)
        await pool.call("POST", "/weights", published(1, sources=own))
        await pool.call("POST", f"/engines/{peer}/beat", having(source="tcp://127.0.0.1:9"))
        _, answer = await pool.call("POST", f"/engines/{other}/beat", {})
    assert answer["weights"]["sources"] == [*own, "tcp://127.0.0.1:9"]
    assert answer["weights"]["publisher_addresses"] == 2


async def test_a_stale_publish_is_answered_with_what_the_pool_is_at():
    async with manager() as pool:
        await pool.call("POST", "/weights", published(5))
        for stale in (published(4), published(5, digest="cd" * 32)):
            answer = await pool.call("POST", "/weights", stale)
            assert answer == (200, {"weight_version": 5, "is_accepted": False, "is_superseded": False})


async def test_a_worker_cannot_send_others_to_another_machine():
    async with manager(PATIENT) as pool, serving(engine()) as a, serving(engine()) as b:
        liar, other = await pool.join(a.url), await pool.join(b.url)
        await pool.ready(2)
        await pool.call("POST", "/weights", published(1))
        await pool.call("POST", f"/engines/{liar}/beat", having(source="tcp://10.9.9.9:22"))
        _, answer = await pool.call("POST", f"/engines/{other}/beat", {})
        assert answer["weights"]["sources"] == OFFER["sources"]


async def test_min_weight_version_delays_batches_and_openai_calls():
    async with manager(PATIENT) as pool, serving(engine()) as a:
        name = await pool.join(a.url)
        await pool.ready(1)
        await pool.call("POST", "/weights", published(1))
        body = {"requests": [item(0, 10, min_weight_version=1), item(1, 10)]}
        status, answer = await pool.call("POST", "/runs/run/requests", body)
        assert status == 202, answer
        assert [s["id"] for s in await pool.samples("run")] == ["r1"]
        ask = {"prompt": [10, 3, 5, 6], "max_tokens": 10, "min_weight_version": 1, "return_token_ids": True}
        status, answer = await pool.call("POST", "/v1/completions", ask | {"timeout_s": 0.3})
        assert status == 504 and "in the queue" in answer["error"]["message"]
        await pool.call("POST", f"/engines/{name}/beat", having())
        samples = await pool.samples("run", at_least=2)
        assert samples[-1]["spans"][0]["weight_version"] == 1
        status, answer = await pool.call("POST", "/v1/completions", ask)
        assert [span["weight_version"] for span in answer["choices"][0]["weight_versions"]] == [1]


async def test_an_engine_may_load_what_it_has_fetched_once_it_has_finished():
    slow = StreamingEngine(Behaviour(), interval_s=0.01)
    async with manager() as pool, serving(slow) as a:
        name = await pool.join(a.url)
        await pool.ready(1)
        await pool.submit("run", [100])
        await pool.call("POST", "/weights", published(1, finish_within_s=60))
        for body in ({}, FETCHED):
            _, answer = await pool.call("POST", f"/engines/{name}/beat", body)
            assert answer["weights"]["may_load"] is False
        assert (await pool.call("GET", "/status"))[1]["engines"][0]["is_finishing"] is True
        await pool.samples("run")
        _, answer = await pool.call("POST", f"/engines/{name}/beat", FETCHED)
        assert answer["weights"]["may_load"] is True
        _, answer = await pool.call("POST", f"/engines/{name}/beat", having())
        _, status = await pool.call("GET", "/status")
    assert status["engines"][0]["is_finishing"] is False
    assert status["engines"][0]["finishing_s"] == status["totals"]["finishing_s"] > 0.5


async def test_turns_of_an_episode_hold_their_engine_until_its_end_is_told():
    ask = {"prompt": [10, 3, 5, 6], "max_tokens": 10, "episode": "e1"}
    async with manager(PATIENT) as pool, serving(engine()) as a:
        name = await pool.join(a.url)
        await pool.ready(1)
        await pool.call("POST", "/weights", published(1, finish_within_s=60))
        status, _ = await pool.call("POST", "/v1/completions", ask, headers={"X-Run": "run"})
        assert status == 200
        may_load = []
        for run in ("another", "run"):
            _, answer = await pool.call("POST", f"/engines/{name}/beat", FETCHED)
            may_load.append(answer["weights"]["may_load"])
            async with collector(pool.url, run=run) as client:
                await client.end_episode("e1")
        _, answer = await pool.call("POST", f"/engines/{name}/beat", FETCHED)
        assert [*may_load, answer["weights"]["may_load"]] == [False, False, True]
        status, answer = await pool.call("POST", "/v1/completions", ask | {"episode": 7})
        assert status == 400 and "episode" in answer["error"]["message"]


async def test_restarted_response_has_only_its_new_tokens_in_the_journal(tmp_path, monkeypatch):
    journaled: list[ProgressRow] = []

    def note(self, writes) -> None:
        journaled.extend(ProgressRow.model_validate_json(row[-1]) for sql, row in writes if "O prog" in sql)

    monkeypatch.setattr(Journal, "write", note)
    words = (f"journal={tmp_path / 'journal'}", "journal_interval_s=0.05", "rebalance_gain_s=0")
    slow = [StreamingEngine(Behaviour(), interval_s=0.005) for _ in range(2)]
    async with manager(*words) as pool, serving(slow[0]) as a, serving(slow[1]) as b:
        await pool.join_ready(a.url)
        await pool.submit("run", [300])
        await pool.until(lambda: pool.state.account.tokens > 60)
        other = await pool.join(b.url)
        await pool.ready(2)
        await pool.call("POST", "/weights", published(1, finish_within_s=60))
        await pool.call("POST", f"/engines/{other}/beat", having())
        await a.kill()
        [sample] = await pool.samples("run")
    assert [span["weight_version"] for span in sample["spans"]] == [1]
    anew = [row for row in journaled if row.spans[0].weight_version == 1]
    assert 0 < len(anew) < len(journaled)
    assert anew[0].text_start == 0 and len(anew[0].token_ids) == len(anew[0].text)


async def test_what_the_pool_wants_outlives_the_manager(tmp_path):
    journal = tmp_path / "pool.jsonl"
    async with manager("model=model-a", f"journal={journal}") as pool:
        await pool.call("POST", "/model", {"model": "model-b", "weight_version": 2})
        await pool.call("POST", "/weights", published(3, useful_from=1, finish_within_s=9.0))
    for _ in range(2):
        async with manager("model=model-a", f"journal={journal}") as pool:
            _, answer = await pool.call("GET", "/status")
            assert (answer["model"], answer["weight_version"]) == ("model-b", 3)
            weights = pool.state.weights
            assert (weights.useful_from, weights.finish_within_s) == (1, 9.0)
            assert weights.transfer_token == "secret"
    assert journal.stat().st_mode & 0o077 == 0, "it holds prompts and a token"


async def test_replaced_publisher_stays_refused_after_a_manager_restart(tmp_path):
    journal = f"journal={tmp_path / 'journal'}"
    async with manager(journal, "model=model-a") as pool:
        status, first = await pool.call("POST", "/publishers", {})
        assert status == 201
        await pool.call("POST", "/weights", published(1, **first))
        _, second = await pool.call("POST", "/publishers", {})
        assert second["publisher"] > first["publisher"]
    async with manager(journal) as pool:
        assert pool.state.weights.weight_version == 1
        status, answer = await pool.call("POST", "/weights", published(2, **first))
        assert (status, answer) == (200, {"weight_version": 1, "is_accepted": False, "is_superseded": True})
        _, answer = await pool.call("POST", "/weights", published(2, **second))
        assert answer["is_accepted"]


async def test_manager_without_a_journal_learns_the_newest_publisher():
    async with manager() as pool:
        await pool.call("POST", "/weights", published(3, publisher=50))
        await pool.call("POST", "/weights", published(2, publisher=51))  # stale, but newer by its place
        _, answer = await pool.call("POST", "/weights", published(4, publisher=50))
        assert answer["is_superseded"] and pool.state.weights.weight_version == 3


async def test_an_invented_publisher_number_is_refused_and_blocks_no_trainer():
    async with manager() as pool:
        status, answer = await pool.call("POST", "/weights", published(1, publisher=2**62 - 1))
        assert status == 422
        assert "publisher: 4611686018427387903 was given by no POST /publishers" in answer["error"]["message"]
        status, place = await pool.call("POST", "/publishers", {})
        assert status == 201
        _, answer = await pool.call("POST", "/weights", published(1, **place))
        assert answer["is_accepted"]


async def test_a_question_for_newer_weights_is_answered_once_there_are_others():
    async with manager() as pool, asyncio.TaskGroup() as jobs:
        first = jobs.create_task(pool.call("GET", "/weights/newer-than/none"))
        await asyncio.sleep(0.05)
        assert not first.done()
        await pool.call("POST", "/weights", published(1))
        assert await first == (200, {"digest": DIGEST})
        assert await pool.call("GET", "/weights/newer-than/" + "cd" * 32) == (200, {"digest": DIGEST})
