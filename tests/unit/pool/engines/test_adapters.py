"""What every engine adapter must do, against the documented wire format of its engine."""

import asyncio
import itertools
import json

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rl_agent.pool.engines.adapters import ADAPTERS, TokensRequest, detect
from rl_agent.pool.engines.answers import Refused, StreamError
from rl_agent.pool.engines.link import EngineLink, HttpTransport, read_load
from rl_agent.pool.engines.sse import EventReader
from rl_agent.pool.scheduler.reports import Load
from tests.unit.pool.engines.adapter_wires import (
    PIECES,
    ROUTES,
    WIRES,
    collect,
    engine,
    response,
    sglang_incremental,
    vllm,
    vllm_tokens,
)

FAULTS = ["missing event", "garbage", "cut in an event", "no finish", "abort", "error"]
STATUSES = [(400, True), (422, True), (429, False), (500, False), (503, False)]


@pytest.mark.parametrize("wire", WIRES)
async def test_tokens_logprobs_and_the_finish_arrive_as_they_were_sent(wire):
    kind, make = WIRES[wire]
    async with engine(kind, lambda _: response(make())) as link:
        chunks = await collect(link)
    assert [token for chunk in chunks for token in chunk.token_ids] == [11, 12, 13, 14]
    assert [value for chunk in chunks for value in chunk.logprobs] == [-t / 8 for t in (11, 12, 13, 14)]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, "stop"]
    if ADAPTERS[kind].has_text:
        assert "".join(chunk.text for chunk in chunks) == "so it goes"


@pytest.mark.parametrize("wire", WIRES)
async def test_the_request_states_prompt_limit_and_every_parameter(wire):
    kind, make = WIRES[wire]
    asked = []

    async with engine(kind, lambda request: response(make())) as link:
        adapter = ADAPTERS[kind]
        wanted = TokensRequest("served", [1, 2, 3], 64, {"temperature": 0.5, "seed": 4}, "r", 8)
        asked = json.loads(adapter.body(wanted))
        assert link.info.kind == kind and link.info.model == "/models/one"
    inner = asked.get("sampling_params", asked)
    assert [1, 2, 3] in asked.values()
    assert 64 in (inner.get("max_tokens"), inner.get("max_new_tokens"))
    assert 4 in (inner.get("seed"), inner.get("sampling_seed")) and inner["temperature"] == 0.5
    assert asked["stream"] is True


@pytest.mark.parametrize("wire", WIRES)
async def test_a_response_that_fits_into_one_chunk_is_asked_for_without_a_stream(wire):
    kind, make = WIRES[wire]
    asked = []

    async def answer(request):
        asked.append(await request.json())
        return web.json_response(make()((11, 12, 13, 14), "so it goes", "stop", 4))

    async with engine(kind, answer) as link:
        [chunk] = await collect(link, stream_interval=None)
    assert (chunk.token_ids, chunk.finish_reason) == ((11, 12, 13, 14), "stop")
    assert chunk.logprobs == tuple(-token / 8 for token in (11, 12, 13, 14))
    assert not asked[0].get("stream") and "stream_options" not in asked[0]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("body", [b"", b"{", b"{}", b'{"choices": []}'])
async def test_half_a_whole_response_is_an_error(wire, body):
    kind, _ = WIRES[wire]
    async with engine(kind, lambda _: web.Response(body=body)) as link:
        with pytest.raises(StreamError):
            await collect(link, stream_interval=None)


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


@pytest.mark.parametrize("wire", WIRES)
async def test_an_event_sent_twice_counts_once(wire):
    kind, make = WIRES[wire]

    def answer(_):
        first, second, *rest = response(make())
        return [first, second, second, *rest]

    async with engine(kind, answer) as link:
        chunks = await collect(link)
    assert [token for chunk in chunks for token in chunk.token_ids] == [11, 12, 13, 14]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "fault", ["missing event", "garbage", "cut in an event", "no finish", "abort", "error"]
)
async def test_a_damaged_stream_is_an_error_and_never_a_finished_response(wire, fault):
    kind, make = WIRES[wire]

    def answer(_):
        first, second, *rest = response(make(), finish="abort" if fault == "abort" else "stop")
        return {
            "missing event": [first, *rest],
            "garbage": [first, b"data: {\x80\xff\x00]\n\n", *rest],
            "cut in an event": [first, second[: len(second) // 2]],
            "no finish": [first, second, b"data: [DONE]\n\n"],
            "abort": [first, second, *rest],
            "error": [first, b'data: {"error": {"message": "dead", "code": 500}}\n\n'],
        }[fault]

    async with engine(kind, answer) as link:
        try:
            chunks = await collect(link)
        except StreamError as error:
            assert not isinstance(error, Refused)
        else:
            if (wire, fault) == ("sglang cumulative", "missing event"):  # the next one holds it too
                assert [token for chunk in chunks for token in chunk.token_ids] == [11, 12, 13, 14]
                return
            # The machine treats a finish that is neither stop nor length as a break.
            assert fault == "abort" and chunks[-1].finish_reason == "abort"


@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize(
    ("status", "is_refusal"), [(400, True), (422, True), (429, False), (500, False), (503, False)]
)
async def test_only_a_4xx_that_blames_the_request_is_a_refusal(kind, status, is_refusal):
    async with engine(kind, lambda _: web.json_response({"error": {"message": "no"}}, status=status)) as link:
        with pytest.raises(StreamError) as caught:
            await collect(link)
    assert isinstance(caught.value, Refused) is is_refusal
    assert str(status) in str(caught.value)


async def test_with_stop_strings_tokens_that_travelled_together_are_told_apart():
    async with engine("vllm", lambda _: response(vllm)) as link:
        chunks = await collect(link, token_by_token=True)
    assert [chunk.token_ids for chunk in chunks] == [(11,), (12,), (13,), (14,)]
    assert "".join(chunk.text for chunk in chunks) == "so it goes"


async def test_an_engine_without_text_refuses_stop_strings():
    async with engine("vllm-tokens", lambda _: response(vllm_tokens)) as link:
        with pytest.raises(Refused, match="stop strings and names of tokens need text"):
            await collect(link, token_by_token=True)


async def test_sglang_refuses_a_penalty_that_would_forget_the_tokens_so_far_at_a_move():
    async with engine("sglang", lambda request: web.Response(status=500)) as link:
        with pytest.raises(Refused, match="repetition_penalty"):
            await collect(link, {"repetition_penalty": 1.3})
        with pytest.raises(StreamError, match="HTTP 500"):  # it went to the engine
            await collect(link, {"repetition_penalty": 1.0})


@pytest.mark.parametrize(("label", "model"), [("default", "/models/one"), ("7", "/models/started")])
async def test_sglang_is_known_by_the_model_it_was_started_on_also_after_it_has_taken_other_weights(
    label, model
):
    about = {"model_path": "/models/one", "tokenizer_path": "/models/started", "weight_version": label}
    async with engine("sglang", lambda request: web.Response(status=500), about) as link:
        assert link.info.model == model


async def test_a_stranger_is_no_engine():
    async def stranger(request: web.Request) -> web.Response:
        return web.json_response({"paths": {"/": {}}, "data": "x"})

    app = web.Application()
    app.router.add_get("/{path:.*}", stranger)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
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


def test_the_adapter_follows_from_the_routes():
    assert {kind: detect(routes).kind for kind, routes in ROUTES.items()} == {kind: kind for kind in ROUTES}
    assert detect(["/", "/health"]) is None


def test_events_are_read_however_the_bytes_are_cut():
    whole = b"".join(response(vllm)).replace(b"\n", b"\r\n")
    expected = EventReader().feed(whole)
    for size in (1, 2, 7, 64):
        reader = EventReader()
        parts = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert [payload for part in parts for payload in reader.feed(part)] == expected
    assert len(expected) == len(PIECES) + 1


def test_load_is_read_from_the_metrics_of_either_engine():
    assert read_load(
        'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_running{engine="1"} 2.0\n'
        'vllm:num_requests_waiting{engine="0"} 4.0\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'
    ) == Load(5, 4, 0.5)
    text = "sglang:num_running_reqs 7\nsglang:num_queue_reqs 1\nsglang:token_usage 0.25\n"
    assert read_load(text) == Load(7, 1, 0.25)
    assert read_load("python_info 1\n") is None
