"""Duties of every engine adapter, against the documented wire format of its engine."""

import json

import pytest
from aiohttp import web

from rl_agent.pool.engines.adapters import ADAPTERS, TokensRequest, detect
from rl_agent.pool.engines.answers import Refused, StreamError
from tests.unit.pool.engines.adapter_wires import (
    ROUTES,
    by_wire,
    collect,
    engine,
    logprobs_of,
    response,
    sglang_cumulative,
    tokens_of,
    vllm,
)


@by_wire
async def test_tokens_logprobs_and_the_finish_arrive_as_they_were_sent(kind, make):
    async with engine(kind, lambda _: response(make())) as link:
        chunks = await collect(link)
    assert tokens_of(chunks) == [11, 12, 13, 14]
    assert logprobs_of(chunks) == [-token / 8 for token in (11, 12, 13, 14)]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, "stop"]
    assert "".join(chunk.text for chunk in chunks) == "so it goes"


@by_wire
async def test_the_request_states_prompt_limit_and_every_parameter(kind, make):
    async with engine(kind, lambda request: response(make())) as link:
        assert link.info.kind == kind and link.info.model == "/models/one"
    request = TokensRequest("served", [1, 2, 3], 64, {"temperature": 0.5, "seed": 4}, "r", 8)
    body = json.loads(ADAPTERS[kind].body(request))
    inner = body.get("sampling_params", body)
    assert [1, 2, 3] in body.values()
    assert 64 in (inner.get("max_tokens"), inner.get("max_new_tokens"))
    assert 4 in (inner.get("seed"), inner.get("sampling_seed")) and inner["temperature"] == 0.5
    assert body["stream"] is True


@by_wire
async def test_a_response_that_fits_into_one_chunk_is_asked_for_without_a_stream(kind, make):
    bodies = []

    async def answer(request):
        bodies.append(await request.json())
        return web.json_response(make()((11, 12, 13, 14), "so it goes", "stop", 4))

    async with engine(kind, answer) as link:
        [chunk] = await collect(link, stream_interval=None)
    assert (chunk.token_ids, chunk.finish_reason) == ((11, 12, 13, 14), "stop")
    assert chunk.logprobs == tuple(-token / 8 for token in (11, 12, 13, 14))
    assert not bodies[0].get("stream") and "stream_options" not in bodies[0]


@by_wire
@pytest.mark.parametrize("body", [b"", b"{", b"{}", b'{"choices": []}'])
async def test_half_a_whole_response_is_an_error(kind, make, body):
    async with engine(kind, lambda _: web.Response(body=body)) as link:
        with pytest.raises(StreamError):
            await collect(link, stream_interval=None)


@by_wire
async def test_an_event_sent_twice_counts_once(kind, make):

    def answer(_):
        first, second, *rest = response(make())
        return [first, second, second, *rest]

    async with engine(kind, answer) as link:
        assert tokens_of(await collect(link)) == [11, 12, 13, 14]


@by_wire
@pytest.mark.parametrize(
    "fault", ["missing event", "garbage", "cut in an event", "no finish", "abort", "error"]
)
async def test_a_damaged_stream_is_an_error_and_never_a_finished_response(kind, make, fault):

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
            if (make, fault) == (sglang_cumulative, "missing event"):  # the next one holds it too
                assert tokens_of(chunks) == [11, 12, 13, 14]
                return
            # The machine treats a finish that is neither stop nor length as a break.
            assert fault == "abort" and chunks[-1].finish_reason == "abort"


@pytest.mark.parametrize("kind", ROUTES)
@pytest.mark.parametrize(
    ("status", "is_refusal"), [(400, True), (422, True), (429, False), (500, False), (503, False)]
)
async def test_only_a_4xx_that_blames_the_request_is_a_refusal(kind, status, is_refusal):
    async with engine(kind, lambda _: web.json_response({"error": {"message": "no"}}, status=status)) as link:
        with pytest.raises(StreamError) as caught:
            await collect(link)
    assert isinstance(caught.value, Refused) is is_refusal
    assert str(caught.value) == ("no" if is_refusal else f"HTTP {status}: no")


async def test_with_stop_strings_tokens_that_travelled_together_are_told_apart():
    async with engine("vllm", lambda _: response(vllm)) as link:
        chunks = await collect(link, token_by_token=True)
    assert [chunk.token_ids for chunk in chunks] == [(11,), (12,), (13,), (14,)]
    assert "".join(chunk.text for chunk in chunks) == "so it goes"


def test_the_adapter_follows_from_the_routes():
    kinds = {kind: detect(routes).kind for kind, routes in ROUTES.items()}
    assert kinds == {kind: kind for kind in ROUTES} | {"packed": "vllm"}, "packed tokens come beside text"
    assert detect(["/", "/health"]) is None
