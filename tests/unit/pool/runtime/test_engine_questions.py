"""Questions to engines beside responses: who is asked again, and what the client is told."""

import asyncio
import json

import pytest
from aiohttp import web

from rl_agent.pool.engines.answers import StreamError, WrongAnswer
from rl_agent.pool.runtime.engine_questions import ask_any, ask_now, read_prompt
from tests.support.pool_setup import until
from tests.unit.pool.asked_engine import AskedLink, AskedPool


async def ask(*answers, timeout_s=5.0):
    link = AskedLink(*answers)
    more = {"timeout_s": timeout_s, "pause_s": 0.0}
    answer = await ask_any(AskedPool(link), "/tokenize", {"prompt": "x"}, lambda a: a["n"], **more)
    return answer, link.questions


async def test_failed_or_malformed_engine_answer_is_requested_again():
    faults = (StreamError("cut"), (500, b""), (200, b"{"), (200, b"[1]"))
    answer, questions = await ask(*faults, (200, b'{"n": 3}'))
    assert answer == 3 and len(questions) == 5
    assert {path for path, _ in questions} == {"/tokenize"}
    assert json.loads(questions[0][1]) == {"prompt": "x", "model": "served"}


@pytest.mark.parametrize(
    ("status", "answered", "words"),
    [(400, 400, "no such thing"), (404, 501, "the engines of this pool have no")],
)
async def test_a_refusal_is_the_clients_in_the_engines_words(status, answered, words):
    with pytest.raises(web.HTTPException) as caught:
        await ask((status, b'{"error": {"message": "no such thing"}}'))
    assert caught.value.status == answered and words in caught.value.text


async def test_at_the_deadline_the_last_reason_is_said():
    with pytest.raises(web.HTTPException) as caught:
        await ask_any(AskedPool(None), "/tokenize", {}, dict, timeout_s=0.01, pause_s=0.001)
    assert caught.value.status == 504 and "no engine in the pool within 0.01 s" in caught.value.text


async def test_a_call_counts_as_unread_while_it_waits_for_an_engine():
    pool = AskedPool(None)
    call = asyncio.create_task(ask_any(pool, "/tokenize", {}, dict, timeout_s=60.0, pause_s=0.001))
    await until(lambda: pool.num_unread, 20)
    pool.link = AskedLink((200, b"{}"))
    await call
    assert pool.num_unread == 0


@pytest.mark.parametrize("answer", [StreamError("cut"), (400, b"{}"), (200, b"no json"), (200, b"{}")])
async def test_asked_once_an_engine_that_cannot_say_is_none(answer):
    assert await ask_now(AskedPool(AskedLink(answer)), "/detokenize", {}, lambda a: a["n"]) is None
    assert await ask_now(AskedPool(None), "/detokenize", {}, lambda a: a["n"]) is None


@pytest.mark.parametrize("tokens", [None, "12", [1.0], [True], [-1], [2**31]])
def test_what_is_no_prompt_is_the_engines_fault(tokens):
    with pytest.raises(WrongAnswer):
        read_prompt({"tokens": tokens}, "tokens")


def test_a_prompt_without_tokens_is_refused():
    assert read_prompt({"tokens": [1, 2]}, "tokens") == (1, 2)
    with pytest.raises(web.HTTPException) as caught:
        read_prompt({"tokens": []}, "tokens")
    assert caught.value.status == 400
