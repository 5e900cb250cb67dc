"""The manager over its real HTTP, with simulated engines that stream."""

import asyncio
import json
import time

import pytest

from rl_agent.pool.runtime.history import history_file
from tests.support.pool_setup import are_exact, expected, item, manager
from tests.support.simulated_engine import Behaviour
from tests.support.streaming_engine import StreamingEngine, serving


def engine(**more):
    return StreamingEngine(Behaviour(), **{"interval_s": 0.002, **more})


async def test_a_batch_over_two_engines_ends_whole_and_in_order_of_completion():
    async with manager() as pool, serving(engine()) as a, serving(engine()) as b:
        await pool.join_ready(a.url, b.url)
        lengths = [30 - number for number in range(20)]
        await pool.submit("run", lengths)
        samples = await pool.samples("run", at_least=20)
        assert [sample["cursor"] for sample in samples] == list(range(1, 21))
        for sample in samples:
            number = int(sample["id"][1:])
            assert sample["token_ids"] == expected(lengths[number], number)
            assert sample["finish_reason"] == "stop" and len(sample["text"]) == lengths[number]
        assert a.engine.sampled and b.engine.sampled


async def test_a_killed_engine_loses_nothing_and_no_token_is_sampled_twice():
    async with manager() as pool, serving(engine()) as a, serving(engine()) as b:
        await pool.join_ready(a.url, b.url)
        await pool.submit("run", [200] * 40)
        await pool.until(lambda: a.engine.sampled > 500)
        await a.kill()
        samples = await pool.samples("run", at_least=40)
        assert are_exact(samples, 200) and not b.engine.is_continuing_wrongly
        # Sampled again is only what had left the dead engine and not arrived.
        assert pool.state.account.tokens == 40 * 200
        assert {len(sample["spans"]) for sample in samples} == {1, 2}


async def test_a_stopped_engine_is_gone_with_its_lease_and_comes_back_by_itself():
    async with manager("lease_s=0.5", "heartbeat_s=0.1") as pool, serving(engine()) as a:
        await pool.join_ready(a.url)
        [first] = pool.state.engines
        await pool.submit("run", [1000])
        await pool.until(lambda: a.engine.sampled > 5)
        a.engine.stop()
        await pool.until(lambda: not pool.state.engines)
        assert pool.state.departed[-1].reason.startswith("its lease of 0.5 s is over")
        assert pool.runtime.pool.open_requests() == 1
        a.engine.resume()
        await pool.ready(1)
        assert list(pool.state.engines) != [first]
        assert are_exact(await pool.samples("run"), 1000)


async def test_engine_with_answers_slower_than_its_lease_stays():
    """No token is there before the last byte, and meanwhile it does not say that it is well."""
    slow = engine(interval_s=0.0, piece_bytes=50, piece_s=0.2, is_deaf_at_work=True)
    async with manager("lease_s=0.5", "heartbeat_s=0.1", "stall_timeout_s=60") as pool, serving(slow) as a:
        await pool.join_ready(a.url)
        short = item(0, 20) | {"max_tokens": 20}  # so it is asked for whole
        await pool.call("POST", "/runs/run/requests", {"requests": [short]})
        [sample] = await pool.samples("run")
        assert (sample["token_ids"], sample["moves"]) == (expected(20, 0), 0)
        assert sample["duration_s"] > 3 * 0.5
        assert slow.wholes == 1 and not pool.state.account.engine_deaths


async def test_engines_that_go_silent_together_all_come_back():
    async with (
        manager("lease_s=0.5", "heartbeat_s=0.1") as pool,
        serving(engine()) as a,
        serving(engine()) as b,
        serving(engine()) as c,
    ):
        urls = {served.url for served in (a, b, c)}
        await pool.join_ready(*urls)
        time.sleep(1.0)  # noqa: ASYNC251 - as after SIGSTOP: all leases of this manager are over at once
        await pool.until(lambda: pool.state.account.engine_deaths == 3)
        await pool.ready(3)
        assert {record.offer.name for record in pool.state.engines.values()} == urls


async def test_a_consumer_that_reconnects_sees_each_sample_exactly_once():
    async with manager() as pool, serving(engine()) as a:
        await pool.join(a.url)
        await pool.submit("run", [20] * 12)
        seen, cursor = [], 0
        while len(seen) < 12:
            async with asyncio.timeout(20):
                samples = await pool.samples("run", cursor, at_least=5)
            again = await pool.samples("run", cursor, at_least=1)  # the first answer got lost on the way
            assert again[: len(samples)] == samples
            assert len(samples) >= 5 or len(seen) + len(samples) == 12
            seen += [sample["id"] for sample in again]
            cursor = again[-1]["cursor"]
        assert sorted(seen) == sorted(f"r{number}" for number in range(12))
        assert await pool.samples("run", cursor, wait_s=0) == []
        assert (await pool.call("GET", "/runs/run/samples?after=3"))[0] == 409


async def test_submitting_again_is_idempotent_also_after_the_end():
    async with manager() as pool, serving(engine()) as a:
        await pool.join(a.url)
        body = {"requests": [item(0, 10), item(1, 10)]}
        assert (await pool.call("POST", "/runs/run/requests", body))[1] == {"accepted": 2, "known": 0}
        await pool.samples("run", at_least=2)
        body["requests"].append(item(2, 10))
        assert (await pool.call("POST", "/runs/run/requests", body))[1] == {"accepted": 1, "known": 2}
        assert len(await pool.samples("run", at_least=3)) == 3


async def test_where_lengths_are_told_the_longest_begins_first():
    async with manager() as pool, serving(engine()) as a:
        items = [item(n, 20, expected_tokens=told) for n, told in enumerate((5, 50, 20))]
        await pool.call("POST", "/runs/run/requests", {"requests": items})
        await pool.join(a.url, capacity=1)
        samples = await pool.samples("run", at_least=3)
        assert [sample["id"] for sample in samples] == ["r1", "r2", "r0"]


async def test_dropping_a_run_frees_its_name_and_cancels_what_is_open():
    async with manager() as pool, serving(engine()) as a:
        await pool.join(a.url)
        await pool.submit("run", [5000] * 3)
        await pool.until(lambda: a.engine.running == 3)
        await pool.call("DELETE", "/runs/run")
        await pool.until(lambda: a.engine.running == 0)
        await pool.submit("run", [10] * 3)
        assert len(await pool.samples("run", at_least=3)) == 3


async def test_a_drain_by_name_moves_the_requests_and_ends_at_its_deadline(tmp_path):
    journal = tmp_path / "pool.sqlite"
    async with manager(f"journal={journal}") as pool, serving(engine()) as a, serving(engine()) as b:
        await pool.join_ready(a.url, name="spot", has_worker=True)
        await pool.submit("run", [300])
        await pool.until(lambda: a.engine.sampled > 20)
        await pool.join(b.url)
        status, _ = await pool.call("POST", "/engines/spot/drain", {"deadline_s": 0.3})
        assert status == 200
        [sample] = await pool.samples("run", at_least=1)
        assert sample["token_ids"] == expected(300, 0) and sample["moves"] == 1
        await pool.until(lambda: len(pool.state.engines) == 1)
        _, status = await pool.call("GET", "/status")
    [move] = status["newest_moves"]
    assert (move["run"], move["request"], move["from"], move["to"]) == ("run", "r0", "spot", b.url)
    assert 20 <= move["tokens"] < 300 and move["waited_s"] >= 0 and move["reason"].startswith("drains: ")
    [recorded] = [
        json.loads(line) for line in history_file(journal).read_text().splitlines() if "moved" in line
    ]
    assert (recorded["moved"], recorded["from"], recorded["tokens"]) == ("r0", "spot", move["tokens"])


async def test_networks_are_limited():
    async with manager("allowed_sender_ips=[10.0.0.0/8]") as pool:
        assert (await pool.call("GET", "/status"))[0] == 403


async def test_a_pool_that_is_full_says_so_and_when_to_ask_again():
    async with manager("max_open_requests=3") as pool:
        await pool.submit("run", [10] * 3)
        body = {"requests": [item(9, 10)]}
        async with pool.session.post(pool.url + "/runs/run/requests", json=body) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "5")


@pytest.mark.parametrize("prompt", ["a text", [10, 1, 5, 6]], ids=["text", "tokens"])
async def test_a_request_without_an_engine_is_in_the_log_within_seconds(caplog, prompt):
    async with manager() as pool, asyncio.TaskGroup() as jobs:
        call = jobs.create_task(pool.call("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 9}))
        await pool.until(lambda: "1 requests wait" in caplog.text and "none has joined" in caplog.text)
        assert not call.done()
        call.cancel()


async def test_status_and_metrics_tell_the_same_numbers():
    async with manager("on_demand_price_per_hour=10") as pool, serving(engine()) as a:
        await pool.join(a.url, price_per_hour=2.5)
        await pool.submit("run", [10] * 4)
        await pool.samples("run", at_least=4)
        status = (await pool.call("GET", "/status"))[1]
        text = (await pool.call("GET", "/metrics"))[1]
        assert status["requests"]["completed"] == 4 and status["tokens"] == 40
        assert 'rl_pool_requests_total{state="completed"} 4.0' in text
        assert "rl_pool_tokens_total 40.0" in text
        assert status["cost"]["on_demand"] == pytest.approx(4 * status["cost"]["spent"], rel=0.05)
