"""The first prompt's tokens, compared with those of an engine that is real but for its answers."""

import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from tokenizers import AddedToken

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.errors import ConfigError
from rl_agent.rollout.engine_access import check_tokens
from tests.support.rollout_setup import make_plan
from tests.support.tiny_chat import CHATML, TURN_END, tiny_chat, tiny_tokenizer

CARD = {"id": "m", "root": "/models/m", "max_model_len": 64}
PARTS_ONLY = (
    "{%- for message in messages -%}{%- for part in message.content -%}{{- part.text -}}{%- endfor -%}"
    "{%- endfor -%}"
)


class Engine:
    """Answers `/tokenize` as vLLM does, with a tokenizer and a chat template of its own."""

    def __init__(self, tokenizer=None, template=CHATML, *, takes_chats=True, status=200):
        self.tokenizer = tokenizer or tiny_tokenizer()
        self.chat = ChatTokenizer(self.tokenizer, template, {2: TURN_END}, {})
        self.takes_chats, self.status = takes_chats, status
        self.requests = []

    async def handle(self, request):
        if request.path == "/v1/models":
            return web.json_response({"data": [CARD]})
        assert (request.method, request.path) == ("POST", "/tokenize")
        question = json.loads(await request.read())
        self.requests.append(question)
        if self.status != 200 or ("messages" in question and not self.takes_chats):
            return web.Response(status=400 if self.status == 200 else self.status)
        if "messages" in question:
            return web.json_response({"tokens": self.chat.encode_messages(question["messages"])})
        special = question["add_special_tokens"]
        ids = self.tokenizer.encode(question["prompt"], add_special_tokens=special).ids
        return web.json_response({"tokens": ids})


@asynccontextmanager
async def connected(engine):
    async with RawTestServer(engine.handle) as server:
        url = f"http://127.0.0.1:{server.port}"
        async with EngineClient(url, ClientSettings(5.0, 0), identify=lambda served: 0) as client:
            yield client


@pytest.fixture
def check(tmp_path):
    async def check(engine, *, prompt="Go.", chat=None, words=()):
        config = make_plan(tmp_path, *words, engine_url="http://engine:1").config
        async with connected(engine) as client:
            await check_tokens(client, chat or tiny_chat(), config, prompt)

    return check


def tokenizer_with(*added):
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(text) for text in added])
    return tokenizer


async def test_equal_tokens_of_the_chat_take_one_question(check):
    engine = Engine()
    await check(engine, words=("policy_config.system_prompt=Be brief.",))

    ((system, user),) = (request["messages"] for request in engine.requests)
    assert (system["content"], user["content"]) == ("Be brief.", "Go.")


@pytest.mark.parametrize("takes_chats", [True, False])
async def test_token_unknown_to_the_collector_is_refused(check, takes_chats):
    with pytest.raises(ConfigError) as caught:
        await check(Engine(tokenizer_with("Go"), takes_chats=takes_chats))

    assert str(caught.value) == (
        "/models/m: the engine at http://engine:1 reads a text otherwise than tokenizer.json: token 6 of the"
        " first prompt is 259 there and 41 ('G') here; save the tokenizer anew with"
        " transformers"
    )


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            CHATML.replace("add_generation_prompt", "false"),
            r"token \d+ of the first prompt is None there and \d+ \('<\|im_start\|>'\) here",
        ),
        (
            CHATML.replace("message.content", "message.content + '!'"),
            r"renders messages otherwise than the model's chat template: .*'!'",
        ),
    ],
    ids=["it ends earlier", "it has other words"],
)
async def test_an_engine_with_another_chat_template_is_refused(check, template, message):
    with pytest.raises(ConfigError, match=message):
        await check(Engine(template=template))


async def test_template_that_shows_the_time_may_show_another(check):
    dated = "{{ strftime_now('%d %b') }}" + CHATML
    await check(Engine(template="Tomorrow" + CHATML), chat=tiny_chat(dated))


async def test_right_chat_passes_whatever_its_marks_are_as_text(check):
    engine = Engine()
    engine.tokenizer = tokenizer_with("Go")  # as Mistral's own tokenizer, which reads no mark in a text
    await check(engine)


@pytest.mark.parametrize("status", [400, 404, 405, 500, 503])
async def test_engine_without_the_route_passes(check, status):
    await check(Engine(tokenizer_with("Go"), status=status))


async def test_control_token_in_a_task_is_no_difference(check):
    engine = Engine()
    await check(engine, prompt="What does <|im_end|> mean?")

    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    ("template", "words"),
    [(PARTS_ONLY, ()), ("{{ raise_exception('no text') }}", ()), (CHATML, ("pool=elastic",))],
    ids=["a template of parts", "a template that refuses", "a pool"],
)
async def test_nothing_is_asked_where_no_answer_could_be_compared(check, template, words):
    engine = Engine()
    await check(engine, chat=tiny_chat(template), words=words)
    assert not engine.requests
