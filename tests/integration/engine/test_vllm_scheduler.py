"""A real vLLM hands tokens over in portions, whatever others ask for in the same steps."""

import asyncio

import aiohttp
import pytest

from tests.integration.engine.test_vllm_route import PROMPT, STATED, joined, linked, response

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(300)]


async def test_the_first_token_comes_at_once_and_then_portions(vllm_server):
    async with linked(vllm_server.url) as link:
        chunks = await response(link, STATED | {"ignore_eos": True}, interval=16)
        assert [len(chunk.token_ids) for chunk in chunks] == [1, *[16] * 6, 3]
        [chunk] = await response(link, STATED | {"ignore_eos": True}, interval=None)
        assert len(chunk.token_ids) == 100
        [chunk] = await response(link, STATED, max_tokens=1)
        assert (len(chunk.token_ids), chunk.finish_reason) == (1, "length")


async def test_others_that_want_more_logprobs_in_the_same_steps_change_nothing(vllm_server):
    params = STATED | {"temperature": 0.0, "ignore_eos": True}
    more = {"model": str(vllm_server.model), "prompt": PROMPT, "max_tokens": 60, "logprobs": 5}
    async with linked(vllm_server.url) as link, aiohttp.ClientSession() as session:
        alone = joined(await response(link, params))

        async def other():
            async with session.post(vllm_server.url + "/v1/completions", json=more) as answer:
                assert answer.status == 200

        chunks, *_ = await asyncio.gather(response(link, params), *(other() for _ in range(4)))
    tokens, logprobs, *end = joined(chunks)
    assert (tokens, tuple(end)) == (alone[0], alone[2:])
    assert logprobs == pytest.approx(alone[1], abs=1e-3)


async def test_a_pause_hands_over_what_was_sampled_before_it(vllm_server):
    params = STATED | {"temperature": 0.0, "ignore_eos": True}
    chunks, clock = [], 0
    async with linked(vllm_server.url) as link, aiohttp.ClientSession() as session:
        uninterrupted = joined(await response(link, params, max_tokens=200))

        async def portions():
            async for chunk in link.generate(
                PROMPT, 200, params, "portions", stream_interval=1000, needs_text=False, vocab_size=512
            ):
                chunks.append(chunk)

        async def told(route):
            async with session.post(vllm_server.url + route) as answer:
                assert answer.status == 200

        async with asyncio.TaskGroup() as jobs:
            jobs.create_task(portions())
            async for _ in link.generate(
                PROMPT, 200, params, "clock", stream_interval=1, needs_text=True, vocab_size=512
            ):
                clock += 1
                if clock == 20:
                    await told("/pause?mode=keep&clear_cache=true")
                    for _ in range(100):
                        if len(chunks) == 2:
                            break
                        await asyncio.sleep(0.02)
                    await asyncio.sleep(0.2)  # nothing more comes, however long the pause
                    assert [len(chunk.token_ids) > 1 for chunk in chunks] == [False, True]
                    await told("/resume")
    assert joined(chunks)[0] == uninterrupted[0]
    assert joined(chunks)[1] == pytest.approx(uninterrupted[1], abs=1e-3)
