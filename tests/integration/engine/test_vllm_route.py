"""Our route in a real vLLM gives what its own routes give, bit by bit."""

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import aiohttp
import numpy as np
import pytest

from rl_agent.engine.packed import MODELS_OWN, PATH, RENDER_PATH
from rl_agent.engine.vllm_route import PackedRoute, take_portions_at_once
from rl_agent.engine.wire import Sampling
from rl_agent.pool.engines.link import EngineLink, HttpTransport
from tests.support.pool_setup import collector

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(300)]

STATED = {"temperature": 1.5, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "seed": 7}
PROMPT = [20, 30, 41, 50]


@asynccontextmanager
async def linked(url):
    async with aiohttp.ClientSession() as session:
        link = EngineLink(HttpTransport(session, url))
        await link.probe()
        yield link


async def response(link, params, *, max_tokens=100, prompt=PROMPT, interval=16, needs_text=False):
    stream = link.generate(
        prompt, max_tokens, params, "r", stream_interval=interval, needs_text=needs_text, vocab_size=512
    )
    return [chunk async for chunk in stream]


def joined(chunks):
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    logprobs = [value for chunk in chunks for value in chunk.logprobs]
    return tokens, logprobs, chunks[-1].finish_reason, chunks[-1].stop_reason


@pytest.fixture
def paths_opened(monkeypatch):
    """The paths that transports open."""
    paths, plain = [], HttpTransport.open

    def opening(self, method, path, body=None):
        paths.append(path)
        return plain(self, method, path, body)

    monkeypatch.setattr(HttpTransport, "open", opening)
    return paths


CASES = {
    "greedy": {"temperature": 0.0, "ignore_eos": True},
    "sampled": {"ignore_eos": True},
    "its own end": {},
    "penalties": {"presence_penalty": 0.4, "repetition_penalty": 1.2, "min_tokens": 30},
    "cut": {"top_k": 9, "top_p": 0.8, "min_p": 0.01},
}


@pytest.mark.parametrize("case", CASES)
async def test_packed_tokens_are_those_of_vllms_own_route(vllm_server, paths_opened, case):
    params = STATED | CASES[case]
    async with linked(vllm_server.url) as link:
        for params["seed"] in range(7, 40):
            before = joined(await response(link, params, needs_text=True))
            if before[2] == "stop" or case != "its own end":
                break
        assert paths_opened[-1] == "/v1/completions"
        streamed = joined(await response(link, params))
        whole = joined(await response(link, params, interval=None))
        assert paths_opened[-2:] == [PATH, PATH]
    assert streamed == before == whole
    assert len(before[0]) > 1 and before[2] == ("stop" if case == "its own end" else "length")


def test_logprobs_taken_at_once_are_those_that_vllm_takes_one_by_one(monkeypatch):
    from vllm.logprobs import FlatLogprobs
    from vllm.v1.engine.logprobs import LogprobsProcessor
    from vllm.v1.outputs import LogprobsLists

    def taken():
        of_request = LogprobsProcessor(None, FlatLogprobs(), None, 0.0, 0, None)
        for size, columns in ((1, 3), (4, 1)):  # the first beside a request that wants more of them
            values = -np.arange(size * columns, dtype=np.float32).reshape(size, columns)
            ids, ranks = values.astype(np.int32) + 9, np.zeros(size, np.int32)
            of_request._update_sample_logprobs(LogprobsLists(ids, values, ranks, None))
        return of_request

    before, one_by_one = taken(), LogprobsProcessor._update_sample_logprobs
    monkeypatch.setattr(LogprobsProcessor, "_update_sample_logprobs", one_by_one)  # undone at the end
    take_portions_at_once()
    assert taken() == before


def test_a_vllm_without_the_method_for_logprobs_keeps_its_own_way(monkeypatch):
    from vllm.v1.engine.logprobs import LogprobsProcessor

    monkeypatch.delattr(LogprobsProcessor, "_update_sample_logprobs")
    take_portions_at_once()
    assert not hasattr(LogprobsProcessor, "_update_sample_logprobs")


async def test_the_stop_token_that_ended_a_response_is_named(vllm_server):
    async with linked(vllm_server.url) as link:
        tokens, *_ = joined(await response(link, STATED | {"ignore_eos": True}))
        params = STATED | {"ignore_eos": True, "stop_token_ids": [tokens[40]]}
        before = joined(await response(link, params, needs_text=True))
        assert before == joined(await response(link, params))
        assert before == joined(await response(link, params, interval=None))
    assert before[2:] == ("stop", tokens[40])


async def test_a_response_that_is_left_ends_and_an_aborted_one_says_so(vllm_server):
    params = STATED | {"ignore_eos": True}
    async with linked(vllm_server.url) as link:
        stream = link.generate(PROMPT, 250, params, "left", stream_interval=8, needs_text=False)
        async with aclosing(stream):
            assert len((await anext(stream)).token_ids) == 1
        for _ in range(200):
            if not (await link.load()).running:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("it runs on")
        for _ in range(20):  # one that ended before it was aborted says nothing
            stream = link.generate(PROMPT, 250, params, "aborted", stream_interval=8, needs_text=False)
            async with aclosing(stream):
                chunks = [await anext(stream)]
                assert (await link.post("/pause?mode=abort", b""))[0] == 200
                chunks += [chunk async for chunk in stream]
            assert (await link.post("/resume", b""))[0] == 200
            if chunks[-1].finish_reason == "abort":
                break
        assert chunks[-1].finish_reason == "abort"
        whole = joined(await response(link, params))
    tokens, logprobs, *_ = joined(chunks)
    assert 1 <= len(tokens) < 250
    assert (tokens[:100], logprobs[:100]) == (whole[0][: len(tokens)], whole[1][: len(tokens)])


@pytest.mark.parametrize(
    ("prompt", "change", "problem"),
    [
        ([20, 4_000_000], {}, "out of vocabulary"),
        (PROMPT, {"temperature": -1.0}, "temperature"),
        ([20] * 300, {}, "length"),
    ],
)
async def test_what_is_wrong_with_a_request_is_said_before_there_is_an_answer(
    vllm_server, prompt, change, problem
):
    sampling = STATED | {"max_tokens": 8} | change
    body = {"request_id": "r", "prompt": prompt, "interval": 8, "sampling": sampling}
    async with aiohttp.ClientSession() as session, session.post(vllm_server.url + PATH, json=body) as answer:
        assert answer.status == 400
        assert problem in (await answer.json())["error"]["message"]


async def test_the_collectors_client_gets_the_same_by_either_way(vllm_server, monkeypatch):
    sampling = Sampling(1.5, 1.0, -1, 0.0, 100, 11, stop_token_ids=(77,))
    decode = lambda prompt, response: f"{prompt} {response}"  # noqa: E731
    responses = []
    for has in (True, False):
        async with collector(vllm_server.url, timeout_s=100) as client:
            assert client.has_packed_tokens
            client.has_packed_tokens = has
            responses.append(await client.generate(PROMPT, sampling, request_id="r", decode=decode))
    first, second = responses
    assert replace(first, duration_s=0) == replace(second, duration_s=0)


async def test_a_chat_is_rendered_to_the_tokens_of_vllms_own_renderer(vllm_server):
    chat = {"messages": [{"role": "user", "content": "What is 1 + 1?"}], "temperature": 0.5, "top_k": 7}
    async with aiohttp.ClientSession(vllm_server.url, raise_for_status=True) as session:
        async with session.post("/v1/chat/completions/render", json=chat) as answer:
            theirs = await answer.json()
        async with session.post(RENDER_PATH, json=chat) as answer:
            ours = await answer.json()
    assert ours["token_ids"] == theirs["token_ids"]
    assert ours["sampling"].keys() == MODELS_OWN
    assert ours["sampling"] | {"temperature": 0.5, "top_k": 7, "top_p": 1.0} == ours["sampling"]


def test_our_route_is_behind_the_key_of_vllm():
    from fastapi import FastAPI
    from fastapi.testclient import TestClient
    from vllm.entrypoints.serve.utils.server_utils import AuthenticationMiddleware

    app = FastAPI()
    app.add_middleware(AuthenticationMiddleware, tokens=["secret"])
    app.add_middleware(PackedRoute)
    with TestClient(app) as client:
        for ask in (client.get, client.post):
            assert ask(PATH).status_code == 401
            assert ask(PATH, headers={"Authorization": "Bearer secret"}).status_code in (200, 400)
