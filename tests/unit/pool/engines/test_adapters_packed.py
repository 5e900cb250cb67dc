"""A vLLM with our own route is asked by it where nobody needs text, streamed and whole."""

import json

import pytest
from aiohttp import web

from rl_agent.engine.packed import PATH, pack
from rl_agent.pool.engines.answers import Refused, StreamError, WrongAnswer
from tests.unit.pool.engines.adapter_wires import (
    PIECES,
    ROUTES,
    collect,
    engine,
    logprobs_of,
    response,
    tokens_of,
    vllm,
)
from tests.unit.pool.engines.test_link_by_tokens import STATED

OURS = "packed"


def frames(finish="stop", stop_token=14):
    sent = []
    for number, (tokens, _) in enumerate(PIECES):
        is_last = number == len(PIECES) - 1
        end = (finish, stop_token) if is_last else (None, None)
        sent.append(pack(tokens, [-token / 8 for token in tokens], *end))
    return sent


@pytest.mark.parametrize("params", [STATED, STATED | {"stop_token_ids": [14], "min_tokens": 3, "seed": 5}])
async def test_tokens_logprobs_and_the_end_arrive_as_they_were_sent(params):
    requests = []

    async def answer(request):
        requests.append((request.path, await request.json()))
        return web.Response(body=b"".join(frames()))

    async with engine(OURS, answer) as link:
        chunks = await collect(link, params, needs_text=False, stream_interval=8)
        assert link.info.kind == "vllm"
    [(path, body)] = requests
    assert (path, body["interval"], body["prompt"]) == (PATH, 8, [1, 2, 3])
    assert body["sampling"] == {"seed": 4} | params | {"max_tokens": 64}
    assert tokens_of(chunks) == [11, 12, 13, 14]
    assert logprobs_of(chunks) == [-token / 8 for token in (11, 12, 13, 14)]
    ends = [(chunk.finish_reason, chunk.stop_reason) for chunk in chunks]
    assert ends == [(None, None), (None, None), ("stop", 14)]


async def test_a_whole_response_is_one_frame_and_asked_for_without_an_interval():
    requests = []

    async def answer(request):
        requests.append(await request.json())
        return web.Response(body=pack((11, 12), (-1.0, -2.0), "length", None))

    async with engine(OURS, answer) as link:
        [chunk] = await collect(link, STATED, needs_text=False, stream_interval=None)
    assert requests[0]["interval"] is None
    assert (chunk.token_ids, chunk.logprobs, chunk.finish_reason) == ((11, 12), (-1.0, -2.0), "length")


@pytest.mark.parametrize("more", [{}, {"needs_text": False, "token_by_token": True}])
async def test_text_is_asked_for_as_of_any_vllm(more):
    requests = []
    async with engine(OURS, lambda request: requests.append(request.path) or response(vllm)) as link:
        await collect(link, STATED, **more)
    assert requests == [ROUTES["vllm"][0]]


@pytest.mark.parametrize("fault", ["cut in a frame", "no end", "too large", "no letters", "abort"])
async def test_a_damaged_stream_is_an_error_and_never_a_finished_response(fault):
    first, second, third = frames("abort" if fault == "abort" else "stop")
    sent = {
        "cut in a frame": [first, second[: len(second) // 2]],
        "no end": [first, second],
        "too large": [first, b"\xff" * 40],
        "no letters": [first, pack((12,), (-1.0,), "x", None)[:-1] + b"\xff"],
        "abort": [first, second, third],
    }[fault]
    async with engine(OURS, lambda _: sent) as link:
        if fault == "abort":  # the machine treats it as a break
            assert (await collect(link, STATED, needs_text=False))[-1].finish_reason == "abort"
            return
        is_wrong = fault in ("too large", "no letters")
        with pytest.raises(WrongAnswer if is_wrong else StreamError) as caught:
            await collect(link, STATED, needs_text=False)
    assert not isinstance(caught.value, Refused)


async def test_what_the_route_refuses_the_usual_one_decides():
    def answer(request):
        refusal = web.json_response({"error": {"message": "no"}}, status=400)
        return refusal if request.path == PATH else response(vllm)

    async with engine(OURS, answer) as link:
        chunks = await collect(link, STATED, needs_text=False)
    assert chunks[-1].finish_reason == "stop" and json.dumps(chunks[-1].text) == '" goes"'
