"""A link sends requests to an engine, and reads its answers."""

import asyncio
import itertools
import json

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from rl_agent.pool.engines.answers import Refused, StreamError
from rl_agent.pool.engines.link import EngineLink, HttpTransport, read_load
from rl_agent.pool.scheduler.reports import Load
from tests.unit.pool.engines.adapter_wires import collect, engine, response, sglang_incremental, vllm


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400", "-5", "many", "0x10", "1e40"])
def test_a_load_that_is_no_count_is_none(value):
    assert read_load(f'vllm:num_requests_running{{engine="0"}} {value}\n') is None
    assert read_load(f"vllm:num_requests_running 1.0\nvllm:num_requests_waiting {value}\n") is None


def test_metrics_with_a_brace_that_is_never_closed_are_read_in_linear_time():
    assert read_load("vllm:num_requests_running{\n" * 200_000) is None


async def test_the_connection_of_a_finished_stream_serves_the_next_request():
    peers = []

    async def answer(request):
        peers.append(request.transport.get_extra_info("peername"))
        stream = web.StreamResponse()
        await stream.prepare(request)
        for part in response(vllm):
            await stream.write(part)
            await asyncio.sleep(0.01)  # what follows the finish comes later
        return stream

    async with engine("vllm", answer) as link:
        for _ in range(3):
            await collect(link)
    assert len(set(peers)) == 1


async def test_sglang_refuses_penalties_that_a_move_would_reset():
    async with engine("sglang", lambda request: web.Response(status=500)) as link:
        with pytest.raises(Refused, match="repetition_penalty"):
            await collect(link, {"repetition_penalty": 1.3})
        with pytest.raises(StreamError, match="HTTP 500"):  # it went to the engine
            await collect(link, {"repetition_penalty": 1.0})


@pytest.mark.parametrize(("label", "model"), [("default", "/models/one"), ("7", "/models/started")])
async def test_sglang_keeps_its_initial_model_name_after_loading_weights(label, model):
    about = {"model_path": "/models/one", "tokenizer_path": "/models/started", "weight_version": label}
    async with engine("sglang", lambda request: web.Response(status=500), about) as link:
        assert link.info.model == model


async def test_a_stranger_is_no_engine():
    async def stranger(request: web.Request) -> web.Response:
        return web.json_response({"paths": {"/": {}}, "data": "x"})

    async with RawTestServer(stranger) as server, aiohttp.ClientSession() as session:
        with pytest.raises(StreamError):
            await EngineLink(HttpTransport(session, str(server.make_url("/")))).probe()


async def test_leaving_a_stream_early_closes_its_connection():
    closed = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        try:
            for total in itertools.count(1):
                event = sglang_incremental((11,), "x", None, total)
                await stream.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                await asyncio.sleep(0.001)
        finally:
            closed.set()
        return stream

    async with engine("sglang", endless) as link:
        stream = link.generate([1], 64, {}, "r")
        async for _ in stream:
            break
        await stream.aclose()
        async with asyncio.timeout(5):
            await closed.wait()


def test_load_is_read_from_the_metrics_of_either_engine():
    assert read_load(
        'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_running{engine="1"} 2.0\n'
        'vllm:num_requests_waiting{engine="0"} 4.0\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'
    ) == Load(5, 4, 0.5)
    text = "sglang:num_running_reqs 7\nsglang:num_queue_reqs 1\nsglang:token_usage 0.25\n"
    assert read_load(text) == Load(7, 1, 0.25)
    assert read_load("python_info 1\n") is None
