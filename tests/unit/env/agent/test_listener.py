"""The address of agents' programs: each episode at its own path, as OpenAI's client meets it."""

import asyncio

import aiohttp
import openai
import pytest

from rl_agent.chat.reply import Reply
from rl_agent.env.agent.listener import AgentListener
from rl_agent.env.agent.session import LimitReached, ModelAnswer


class Recorded:
    """A session that answers with the last message's text, or raises what it is told."""

    model = "served"

    def __init__(self, error=None):
        self.error = error
        self.asked = []
        self.cancelled = asyncio.Event()

    async def ask(self, question):
        self.asked.append(question)
        if self.error is not None:
            raise self.error
        text = question.messages[-1]["content"]
        if text == "wait":
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        return ModelAnswer(Reply(f"re: {text}"), "stop", 3, 2)

    def log(self, text):
        raise AssertionError("nothing is logged here")


@pytest.fixture
async def listener():
    listener = AgentListener()
    await asyncio.gather(listener.start(), listener.start())
    yield listener
    await listener.close()


def client_of(url, **settings):
    return openai.AsyncOpenAI(base_url=url, api_key="any", **{"max_retries": 0, **settings})


async def ask(url, text="hi", **settings):
    messages = [{"role": "user", "content": text}]
    async with client_of(url, **settings) as client:
        answer = await client.chat.completions.create(model="m", messages=messages)
    return answer.choices[0].message.content


async def test_each_session_gets_what_was_sent_to_its_path(listener):
    one, other = Recorded(), Recorded()
    with listener.serving(one) as url, listener.serving(other) as other_url:
        assert await ask(url, "a") == "re: a"
        assert await ask(other_url, "b") == "re: b"
        async with client_of(url) as client:
            assert (await client.models.list()).data[0].id == "served"
    assert [len(session.asked) for session in (one, other)] == [1, 1]


async def test_a_session_that_is_over_is_not_there(listener):
    with listener.serving(Recorded()) as url:
        pass
    with pytest.raises(openai.NotFoundError, match="this episode is over"):
        await ask(url)


async def test_a_limit_is_an_error_that_no_client_repeats(listener):
    session = Recorded(LimitReached("10 steps are taken"))
    with listener.serving(session) as url:
        with pytest.raises(openai.BadRequestError, match="10 steps") as refusal:
            await ask(url, max_retries=2)
        assert refusal.value.code == "context_length_exceeded"
    assert len(session.asked) == 1


async def test_an_episode_that_ends_is_an_error_that_no_client_repeats(listener):
    session = Recorded(RuntimeError("secret words"))
    error = openai.InternalServerError
    with listener.serving(session) as url, pytest.raises(error, match="the episode is over") as refusal:
        await ask(url, max_retries=2)
    assert "secret" not in str(refusal.value)
    assert len(session.asked) == 1


async def test_a_client_that_leaves_cancels_its_question(listener):
    session = Recorded()
    with listener.serving(session) as url:
        with pytest.raises(openai.APITimeoutError):
            await ask(url, "wait", timeout=0.2)
        async with asyncio.timeout(10):
            await session.cancelled.wait()


async def test_other_paths_name_what_is_answered_here(listener):
    with listener.serving(Recorded()) as url:
        async with aiohttp.ClientSession() as client, client.post(f"{url}/embeddings") as answer:
            assert answer.status == 404
            message = (await answer.json())["error"]["message"]
    assert message == (
        "POST /v1/embeddings: only /v1/chat/completions, /v1/responses and /v1/models are answered here"
    )
