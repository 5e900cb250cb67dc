"""The text of a response that several engines made, or one that gives no text."""

import json

import pytest

from rl_agent.pool.runtime.detokenize import response_tokens, text_of
from rl_agent.pool.scheduler.records import Order, Request, RequestId
from tests.unit.pool.asked_engine import AskedLink, AskedPool


def response(tokens=(5, 6, 2), texts=(), *, moves=0, finish="stop", stop=None, needs_text=True, **params):
    order = Order(RequestId("run", "r"), (1,), 100, params, 0.0, needs_text=needs_text)
    request = Request(order, 0, 0.0)
    request.token_ids.extend(tokens)
    request.texts.extend(texts)
    request.moves, request.finish_reason, request.stop_reason = moves, finish, stop
    return request


async def text(request, *answers):
    link = AskedLink(*answers)
    return await text_of(request, AskedPool(link)), link.questions


async def test_what_one_engine_sent_whole_is_the_text_and_nobody_is_asked():
    assert await text(response(texts=("so ", "it"))) == ("so it", [])
    assert await text(response(needs_text=False, moves=1)) == ("", [])


async def test_moved_response_is_decoded_whole_without_its_stop_token():
    request = response(texts=("s", "o"), moves=1, skip_special_tokens=False)
    decoded, [(path, body)] = await text(request, (200, json.dumps({"prompt": "so\ufffd"}).encode()))
    assert (decoded, path, json.loads(body)["tokens"]) == ("so", "/detokenize", [5, 6])


async def test_where_special_tokens_are_left_out_the_engine_renders_the_response():
    answer = (200, b'{"choices": [{"text": "so"}]}')
    rendered, [(path, _)] = await text(response(moves=1), answer)
    assert (rendered, path) == ("so", "/v1/completions/derender")


@pytest.mark.parametrize("answer", [(500, b""), (200, b'{"prompt": 3}')])
async def test_where_no_engine_can_decode_the_text_is_what_was_sent(answer):
    assert (await text(response(texts=("s",), moves=1), answer))[0] == "s"


async def test_what_the_scheduler_cut_at_a_stop_string_stays_as_it_was_cut():
    request = response(texts=("so ",), moves=1)
    request.order.params["stop"], request.stop_reason = ["END"], "END"
    assert await text(request) == ("so ", [])


def test_last_token_is_kept_on_request_or_if_it_stopped_nothing():
    assert response_tokens(response()) == [5, 6]
    assert response_tokens(response(finish="length")) == [5, 6, 2]
    assert response_tokens(response(stop="END")) == [5, 6, 2]
    assert response_tokens(response(include_stop_str_in_output=True)) == [5, 6, 2]
