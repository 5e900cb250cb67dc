"""A manager says how many engines it wants: over HTTP, in metrics and history, and after a restart."""

import asyncio
import json

from tests.support.pool_setup import manager
from tests.support.simulated_engine import Behaviour
from tests.support.streaming_engine import StreamingEngine, start_engine

SCALED = (
    "scale.kinds=[{name: spot, price_per_hour: 3.6, min_engines: 0, max_engines: 4, start_s: 5}]",
    "scale.interval_s=0.05",
    "scale.raise_after_s=0",
    "scale.lower_after_s=0.3",
)


async def wanted(pool):
    status, answer = await pool.call("GET", "/wanted")
    assert status == 200, answer
    return answer


async def test_a_pool_without_kinds_asks_for_nothing():
    async with manager() as pool:
        answer = await wanted(pool)
        assert (answer["counts"], answer["kinds"], answer["since"]) == ({}, [], None)


async def test_open_requests_raise_demand_and_engines_count_by_kind(tmp_path):
    journal = tmp_path / "pool.sqlite"

    async with manager(*SCALED, f"journal={journal}") as pool:
        assert (await wanted(pool))["counts"] == {"spot": 0}
        await pool.submit("run", [400] * 8)
        await pool.until(lambda: pool.runtime.scaling.answer().counts == {"spot": 1})
        served = await start_engine(StreamingEngine(Behaviour(), interval_s=0.01, chunk=8))
        try:
            await pool.join(served.url, capacity=2, kind="spot", price_per_hour=3.6)
            await pool.until(lambda: pool.runtime.scaling.answer().present == {"spot": 1})
            await pool.until(lambda: pool.runtime.scaling.answer().spent > 0)
            status, answer = await pool.call(
                "POST", "/runs/run/step", {"waited_s": 41.0, "lasted_s": 60.0, "price_per_hour": 50.0}
            )
            assert status == 200, answer
            assert "wanted: " in answer["reason"]
            _, text = await pool.call("GET", "/metrics")
            assert 'rl_pool_wanted_engines{kind="spot"}' in text
            assert 'rl_pool_present_engines{kind="spot"} 1.0' in text
            _, status = await pool.call("GET", "/status")
            assert status["engines"][0]["kind"] == "spot"
            assert status["wanted"]["kinds"][0]["start_s"] < 5
            spent = status["wanted"]["spent"]
        finally:
            await served.kill()
    lines = [json.loads(line) for line in journal.with_suffix(".history.jsonl").read_text().splitlines()]
    changes = [line for line in lines if "wanted" in line]
    assert [line["wanted"]["spot"] for line in changes][:2] == [0, 1]
    assert all(line["reason"] for line in changes)
    async with manager(*SCALED, f"journal={journal}") as pool:
        assert pool.runtime.scaling.answer().counts["spot"] >= 1
        await pool.until(lambda: pool.runtime.scaling.answer().spent >= 0.5 * spent)


async def test_waiting_text_raises_demand_until_its_client_gives_up():
    async with manager(*SCALED) as pool:
        call = asyncio.create_task(pool.call("POST", "/v1/completions", {"prompt": "1 + 1 ="}))
        await pool.until(lambda: pool.runtime.scaling.answer().counts == {"spot": 1})
        assert not call.done()
        call.cancel()
        await pool.until(lambda: pool.runtime.scaling.answer().counts == {"spot": 0})


async def test_a_step_that_is_none_is_refused():
    async with manager(*SCALED) as pool:
        for body in ({"waited_s": -1, "lasted_s": 2}, {"waited_s": 1}, {"waited_s": 1.0, "lasted_s": 0}):
            assert (await pool.call("POST", "/runs/run/step", body))[0] in (400, 422)


async def test_what_a_fleet_does_not_get_is_wanted_of_another_kind():
    kinds = (
        "scale.kinds=[{name: spot, price_per_hour: 1, min_engines: 0, max_engines: 4, start_s: 5},"
        " {name: dear, price_per_hour: 3, min_engines: 0, max_engines: 4, start_s: 5}]"
    )

    async with manager(kinds, *SCALED[1:]) as pool:
        await pool.submit("run", [400] * 8)
        await pool.until(lambda: pool.runtime.scaling.answer().counts == {"spot": 1, "dear": 0})
        failed = {"spot": {"count": 2, "retry_in_s": 60.0}}
        await pool.call("POST", "/fleets/rl-1", {"failed": failed})
        await pool.until(lambda: pool.runtime.scaling.answer().counts == {"spot": 0, "dear": 1})
        assert (await wanted(pool))["reason"].endswith("no more spot can be had for now")
        await pool.call("POST", "/fleets/rl-1", {})
        await pool.until(lambda: pool.runtime.scaling.answer().counts["spot"] == 1)
