"""The address of agents' programs: each episode at its own path, as OpenAI's client meets it."""

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import aiohttp
import openai
import pytest

from rl_agent.chat.reply import Reply
from rl_agent.env.agent.listener import AgentListener
from rl_agent.env.agent.rewards import read_end
from rl_agent.env.agent.session import LimitReached, ModelAnswer
from rl_agent.http.tokens import TokenCheck

READ = partial(read_end, "posted")


class Recorded:
    """A session that answers with the last message's text, or raises what it is told."""

    model = "served"

    def __init__(self, error=None):
        self.error = error
        self.questions = []
        self.cancelled = asyncio.Event()

    async def ask(self, question):
        self.questions.append(question)
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


@asynccontextmanager
async def listening(*arguments):
    listener = AgentListener(*arguments)
    await asyncio.gather(listener.start(), listener.start())
    try:
        yield listener
    finally:
        await listener.close()


@pytest.fixture
async def listener():
    async with listening() as listener:
        yield listener


@contextmanager
def serving(listener, session):
    with listener.serving(session, READ) as served:
        yield served.base_url


def client_of(url, **settings):
    return openai.AsyncOpenAI(base_url=url, api_key="any", **{"max_retries": 0, **settings})


async def ask(url, text="hi", **settings):
    messages = [{"role": "user", "content": text}]
    async with client_of(url, **settings) as client:
        answer = await client.chat.completions.create(model="m", messages=messages)
    return answer.choices[0].message.content


async def test_each_session_gets_what_was_sent_to_its_path(listener):
    first, second = Recorded(), Recorded()
    with serving(listener, first) as url, serving(listener, second) as other_url:
        assert await ask(url, "a") == "re: a"
        assert await ask(other_url, "b") == "re: b"
        async with client_of(url) as client:
            assert (await client.models.list()).data[0].id == "served"
    assert [len(session.questions) for session in (first, second)] == [1, 1]


async def test_a_session_that_is_over_is_not_there(listener):
    with serving(listener, Recorded()) as url:
        pass
    with pytest.raises(openai.NotFoundError, match="this episode is over"):
        await ask(url)


async def test_a_limit_is_an_error_that_no_client_repeats(listener):
    session = Recorded(LimitReached("10 steps are taken"))
    with serving(listener, session) as url:
        with pytest.raises(openai.BadRequestError, match="10 steps") as refusal:
            await ask(url, max_retries=2)
        assert refusal.value.code == "context_length_exceeded"
    assert len(session.questions) == 1


async def test_an_episode_that_ends_is_an_error_that_no_client_repeats(listener):
    session = Recorded(RuntimeError("secret words"))
    error = openai.InternalServerError
    with serving(listener, session) as url, pytest.raises(error, match="the episode is over") as refusal:
        await ask(url, max_retries=2)
    assert "secret" not in str(refusal.value)
    assert len(session.questions) == 1


async def test_a_client_that_leaves_cancels_its_question(listener):
    session = Recorded()
    with serving(listener, session) as url:
        with pytest.raises(openai.APITimeoutError):
            await ask(url, "wait", timeout=0.2)
        async with asyncio.timeout(10):
            await session.cancelled.wait()


async def test_other_paths_name_what_is_answered_here(listener):
    with serving(listener, Recorded()) as url:
        async with aiohttp.ClientSession() as client, client.post(f"{url}/embeddings") as answer:
            assert answer.status == 404
            message = (await answer.json())["error"]["message"]
    only = "only /v1/chat/completions, /v1/responses, /v1/models and /v1/end are answered here"
    assert message == f"POST /v1/embeddings: {only}"


@pytest.fixture
async def address():
    """A listener for programs that run already."""
    async with listening(("127.0.0.1", 0)) as listener:
        yield listener


async def post(listener, path, body=None, session="", **headers):
    headers |= {"X-Session-ID": session} if session else {}
    url = f"{listener.origin}/v1/{path}"
    async with aiohttp.ClientSession(headers=headers) as client, client.post(url, json=body) as answer:
        given = await answer.json()
        return answer.status, given["error"]["message"] if "error" in given else given


async def test_a_program_takes_an_episode_chats_and_ends_it(address):
    session = Recorded()
    waiting = asyncio.create_task(post(address, "sessions"))
    with address.offering(session, {"prompt": "2+2="}, READ) as offered:
        status, given = await waiting
        assert (status, given["task"], offered.taken.is_set()) == (200, {"prompt": "2+2="}, True)
        header = {"X-Session-ID": given["session_id"]}
        assert await ask(f"{address.origin}/v1", "a", default_headers=header) == "re: a"
        problem = "reward: expected a number or an object of numbers"
        assert await post(address, "end", {"reward": "high"}, given["session_id"]) == (400, problem)
        assert await post(address, "end", {"reward": 0.5}, given["session_id"]) == (200, {})
        assert (await offered.end).reward == 0.5
        for path in ("end", "chat/completions"):
            answer = await post(address, path, {"reward": 1}, given["session_id"])
            assert answer == (404, "this episode is over, or never was")


async def test_programs_get_episodes_of_their_own_at_one_address(address):
    first, second = Recorded(), Recorded()
    with address.offering(first, {"n": 1}, READ), address.offering(second, {"n": 2}, READ):
        taken = await asyncio.gather(*(post(address, "sessions") for _ in range(2)))
        names = [given["session_id"] for _, given in sorted(taken, key=lambda answer: answer[1]["task"]["n"])]
        for name in names:
            await ask(f"{address.origin}/v1", name, default_headers={"X-Session-ID": name})
    texts = [
        [question.messages[0]["content"] for question in session.questions] for session in (first, second)
    ]
    assert texts == [[name] for name in names]


async def test_an_id_of_the_programs_own_gives_the_same_episode_again(address):
    with address.offering(Recorded(), {"n": 1}, READ), address.offering(Recorded(), {"n": 2}, READ):
        answers = [await post(address, "sessions", {"session_id": "mine"}) for _ in range(2)]
    assert answers == [(200, {"session_id": "mine", "task": {"n": 1}})] * 2
    assert await post(address, "sessions", {"session_id": 1}) == (400, "session_id: expected a text")


async def test_an_episode_that_was_abandoned_is_not_given_to_a_program(address):
    with address.offering(Recorded(), {"n": 1}, READ):
        pass
    with address.offering(Recorded(), {"n": 2}, READ):
        assert (await post(address, "sessions"))[1]["task"] == {"n": 2}


async def test_another_path_of_an_address_names_where_episodes_are_taken(address):
    _, message = await post(address, "session")
    assert message.startswith("POST /v1/session: only POST /v1/sessions, /v1/chat/completions,")


async def test_a_request_without_a_session_is_told_what_is_missing(address):
    status, message = await post(address, "chat/completions", {})
    assert status == 400
    assert message == "the header X-Session-ID is missing; POST /v1/sessions gives a session"


async def all_wait(address, waiting):
    while len(address._offered._getters) < len(waiting):  # noqa: ASYNC110 - what they wait for comes later
        await asyncio.sleep(0)


async def test_programs_that_wait_are_told_of_the_runs_end(address):
    waiting = [asyncio.create_task(post(address, "sessions")) for _ in range(3)]
    await all_wait(address, waiting)
    await address.close()
    assert await asyncio.gather(*waiting) == [(410, "the run has ended, or was stopped")] * 3


async def test_an_address_with_a_token_answers_none_without_it():
    async with listening(("127.0.0.1", 0), TokenCheck(("secret",), None)) as listener:
        with listener.offering(Recorded(), {}, READ):
            assert (await post(listener, "sessions"))[0] == 401
            assert (await post(listener, "sessions", Authorization="Bearer secret"))[0] == 200


async def test_a_foreign_web_page_gets_no_episode(address):
    status, message = await post(address, "sessions", Origin="http://elsewhere.org")
    assert status == 403
    assert "page from elsewhere" in message


async def test_two_programs_that_wait_with_one_id_get_the_same_episode(address):
    waiting = [asyncio.create_task(post(address, "sessions", {"session_id": "mine"})) for _ in range(2)]
    await all_wait(address, waiting)
    with address.offering(Recorded(), {"n": 1}, READ), address.offering(Recorded(), {"n": 2}, READ) as other:
        answers = await asyncio.gather(*waiting)
        assert not other.taken.is_set()
    assert answers == [(200, {"session_id": "mine", "task": {"n": 1}})] * 2


async def test_a_program_that_hung_up_before_the_rollout_gets_no_episode(address):
    at = ("127.0.0.1", int(address.origin.rpartition(":")[2]))
    with socket.create_connection(at) as connection:  # while nothing is read here
        connection.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n")
    with address.offering(Recorded(), {"n": 1}, READ), address.offering(Recorded(), {"n": 2}, READ):
        taken = [await post(address, "sessions") for _ in range(2)]
    assert sorted(given["task"]["n"] for _, given in taken) == [1, 2]


async def test_an_address_of_ip_version_6_is_in_brackets():
    async with listening(("::1", 0)) as listener:
        with listener.offering(Recorded(), {}, READ):
            assert (await post(listener, "sessions"))[0] == 200


async def test_the_log_says_once_in_a_while_that_no_agent_takes_an_episode(address, monkeypatch, caplog):
    monkeypatch.setattr("rl_agent.env.agent.listener.UNTAKEN_S", 0.05)
    with address.offering(Recorded(), {}, READ) as first, address.offering(Recorded(), {}, READ) as second:
        waiting = [asyncio.create_task(address.taken(offered)) for offered in (first, second)]
        while not caplog.messages:  # noqa: ASYNC110 - a log line is not an event
            await asyncio.sleep(0.01)
        assert f"no agent has taken an episode at {address.origin}/v1/sessions" in caplog.messages[0]
        assert len(set(caplog.messages)) == 1
        for offered in (first, second):
            offered.taken.set()
        await asyncio.gather(*waiting)
