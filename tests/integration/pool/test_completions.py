"""Completions over a pool, as the collector and others ask for them."""

import asyncio
import json
from dataclasses import replace
from functools import partial

import pytest

from tests.integration.pool.test_service import engine
from tests.support.pool_setup import GREEDY, collector, expected, manager
from tests.support.simulated_engine import Behaviour
from tests.support.streaming_engine import StreamingEngine, serving


async def test_the_collectors_client_uses_a_pool_as_it_uses_one_engine():
    async with manager() as pool, serving(engine()) as a, serving(engine()) as b:
        await pool.join_ready(a.url, b.url)
        async with collector(pool.url) as client:
            calls = (client.generate([40, n, 5, 6], GREEDY, request_id="q") for n in range(10))
            answers = await asyncio.gather(*calls)
            pressure = await client.pressure()
        assert [list(answer.token_ids) for answer in answers] == [expected(40, n) for n in range(10)]
        assert (pressure.running, pressure.waiting) == (0, 0)


@pytest.mark.parametrize("words", [(), ("stream_interval=1",)])
async def test_collector_that_decodes_tokens_spares_the_engines_the_text(words):
    async with manager(*words) as pool, serving(engine()) as a, serving(engine()) as b:
        await pool.join_ready(a.url)
        decode = lambda prompt, response: f"{prompt[1]} then {len(response)}"  # noqa: E731
        async with collector(pool.url) as client:
            ask = partial(client.generate, sampling=GREEDY, request_id="q", decode=decode)
            async with asyncio.TaskGroup() as jobs:
                calls = [jobs.create_task(ask([100, number, 5, 6])) for number in range(10)]
                await pool.until(lambda: a.engine.running == 10)
                await pool.join(b.url)
                await a.kill()
        assert [list(call.result().token_ids) for call in calls] == [expected(100, n) for n in range(10)]
        assert [call.result().text for call in calls] == [f"{n} then 99" for n in range(10)]
        assert pool.state.account.moves == 10


async def test_collectors_of_two_runs_take_turns_and_keep_siblings_in_groups():
    async with manager("stall_timeout_s=20") as pool, serving(engine()) as a, asyncio.TaskGroup() as jobs:
        await pool.join_ready(a.url, capacity=2)
        a.engine.interval_s = 0.01

        async def collect(run: str) -> None:
            sampling = replace(GREEDY, group="task-7")
            async with collector(pool.url, run=run) as client:
                calls = [client.generate([100, n, 5, 6], sampling, request_id="q") for n in range(4)]
                await asyncio.gather(*calls)

        jobs.create_task(collect("first"))
        await pool.until(lambda: len(pool.state.requests) == 4)
        jobs.create_task(collect("second"))
        await pool.until(lambda: len(pool.state.requests) == 8 or not pool.runtime.pool.open_requests())
        orders = [request.order for request in pool.state.requests.values()]
        assert {(order.run, order.group) for order in orders} == {("first", "task-7"), ("second", "task-7")}


async def test_a_pool_knows_its_model_also_while_no_engine_is_there():
    async with manager() as pool, serving(StreamingEngine(Behaviour())) as engine:
        status, _ = await pool.call("GET", "/v1/models")
        assert status == 503
        engine_id = await pool.join(engine.url)
        await pool.ready(1)
        known = await pool.call("GET", "/v1/models")
        await pool.call("POST", f"/engines/{engine_id}/leave", {"reason": "it is the trainer's turn"})
        await pool.until(lambda: not pool.state.engines)
        assert await pool.call("GET", "/v1/models") == known and known[0] == 200


async def test_a_client_that_hangs_up_frees_the_engine():
    async with manager() as pool, serving(engine()) as a:
        await pool.join(a.url)
        body = {"prompt": [5000, 0, 5, 6], "max_tokens": 4096}
        call = asyncio.ensure_future(pool.call("POST", "/v1/completions", body))
        await pool.until(lambda: a.engine.running == 1)
        call.cancel()
        await pool.until(lambda: a.engine.running == 0)
        await pool.until(lambda: not pool.state.requests)


async def test_short_completion_is_requested_whole_with_its_expected_length():
    async with manager() as pool, serving(engine()) as a:
        await pool.join_ready(a.url)
        body = {"prompt": [20, 0, 5, 6], "max_tokens": 24, "expected_tokens": 20, "return_token_ids": True}
        call = asyncio.ensure_future(pool.call("POST", "/v1/completions", body))
        await pool.until(lambda: pool.state.requests)
        [request] = pool.state.requests.values()
        assert request.order.expected_tokens == 20
        status, answer = await call
        assert status == 200 and answer["choices"][0]["token_ids"] == expected(20, 0)
        assert a.engine.wholes == 1
        await pool.call("POST", "/v1/completions", body | {"stop": "never"})
        assert a.engine.wholes == 1  # a stop string is looked for in every token


async def test_a_completion_without_detokenize_has_no_text():
    async with manager() as pool, serving(engine()) as a:
        await pool.join_ready(a.url)
        body = {"prompt": [20, 0, 5, 6], "max_tokens": 24, "return_token_ids": True, "detokenize": False}
        status, answer = await pool.call("POST", "/v1/completions", body)
        assert status == 200 and answer["choices"][0]["token_ids"] == expected(20, 0)
        assert answer["choices"][0]["text"] == ""
        _, answer = await pool.call("POST", "/v1/completions", body | {"detokenize": True})
        assert answer["choices"][0]["text"] == "x" * 20


async def test_a_streamed_completion_goes_on_across_a_kill():
    async with manager() as pool, serving(engine()) as a, serving(engine()) as b:
        await pool.join_ready(a.url)
        body = {"prompt": [150, 0, 5, 6], "max_tokens": 4096, "stream": True, "return_token_ids": True}
        body["stream_interval"] = 8  # of the events; the engine has another, so a response can go on
        tokens, reasons, sizes = [], [], []
        async with pool.session.post(pool.url + "/v1/completions", json=body) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    choice = json.loads(line[6:])["choices"][0]
                    tokens += choice["token_ids"]
                    reasons.append(choice["finish_reason"])
                    sizes.append(len(choice["token_ids"]))
                    if a.is_alive and len(tokens) >= 30:
                        await pool.join(b.url)
                        await a.kill()
        assert tokens == expected(150, 0)
        assert min(sizes[1:-1]) >= 8
        assert reasons[-1] == "stop" and set(reasons[:-1]) == {None}


async def test_recorded_response_names_the_engine_of_every_token():
    async with manager() as pool, serving(engine()) as a, serving(engine()) as b:
        first = await pool.join(a.url)
        await pool.ready(1)
        async with collector(pool.url) as client:
            call = asyncio.create_task(client.generate([300, 0, 5, 6], GREEDY, request_id="q"))
            await pool.until(lambda: any(len(r.token_ids) > 20 for r in pool.state.requests.values()))
            second = await pool.join(b.url)
            await a.kill()
            response = await call
    assert list(response.token_ids) == expected(300, 0)
    assert [span.engine for span in response.spans] == [first, second]
    assert sum(span.tokens for span in response.spans) == 300 and response.spans[0].tokens > 20
    assert {span.weight_version for span in response.spans} == {response.weight_version_min}
