"""A server that knows OpenAI's parameters alone, tells no tokens, and refuses what it does not know."""

import base64
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from rl_agent.engine.client import ClientSettings
from rl_agent.engine.text_client import TextEngineClient
from rl_agent.engine.wire import Sampling
from rl_agent.errors import EngineError, RetryLater

SAMPLING = Sampling(temperature=0.5, top_p=1.0, top_k=-1, min_p=0.0, max_tokens=50, seed=1)
KNOWN = {"model", "messages", "max_tokens", "temperature", "top_p", "seed"}
SETTINGS = ClientSettings(request_timeout_s=10, retries=1, api_key="secret")


class Hosted:
    def __init__(self, *answers, models=({"id": "first"}, {"id": "second"})):
        self.answers = list(answers)
        self.models = models
        self.bodies = []

    async def handle(self, request):
        if request.headers.get("Authorization") != "Bearer secret":
            return web.Response(status=401)
        if request.path == "/api/v1/models" and self.models is not None:
            return web.json_response({"object": "list", "data": list(self.models)})
        if request.path != "/api/v1/chat/completions":
            return web.Response(status=404)
        body = json.loads(await request.read())
        self.bodies.append(body)
        if unknown := body.keys() - KNOWN:
            return web.Response(status=400, text=f"unknown parameters {unknown}")
        return web.json_response(self.answers.pop(0))


def answer(text="four", finish_reason="stop"):
    return {"choices": [{"index": 0, "message": {"content": text}, "finish_reason": finish_reason}]}


@asynccontextmanager
async def client_of(hosted, *, model=None, path="/api/v1"):
    async def at_once(seconds):
        pass

    async with RawTestServer(hosted.handle) as server:
        client = TextEngineClient(f"http://127.0.0.1:{server.port}{path}", SETTINGS, model=model)
        client._sleep = at_once
        async with client:
            yield client


async def ask(client, content="2 + 2 ="):
    messages = [{"role": "user", "content": content}]
    return await client.generate_chat(messages, SAMPLING, request_id="r", chat_template_kwargs={})


async def test_a_response_is_a_text_without_tokens():
    hosted = Hosted(answer())
    async with client_of(hosted) as client:
        prompt, generation = await ask(client)
    assert (prompt, generation.token_ids, generation.logprobs) == ((), (), ())
    assert (generation.text, generation.finish_reason) == ("four", "stop")
    assert hosted.bodies[0]["model"] == "first" and hosted.bodies[0]["temperature"] == 0.5
    assert "top_p" not in hosted.bodies[0]  # 1 is what every model has


async def test_a_server_that_lists_no_models_is_asked_for_the_named_one():
    hosted = Hosted(answer(), models=None)
    async with client_of(hosted, model="named") as client:
        await ask(client)
    assert hosted.bodies[0]["model"] == "named"


async def test_an_image_is_sent_itself(tmp_path):
    image = tmp_path / "a screen.png"
    image.write_bytes(b"pixels")
    hosted = Hosted(answer())
    part = {"type": "image_url", "image_url": {"url": image.as_uri()}, "uuid": "digest"}
    async with client_of(hosted) as client:
        await ask(client, [part, {"type": "text", "text": "What is this?"}])
    sent, text = hosted.bodies[0]["messages"][0]["content"]
    data = f"data:image/png;base64,{base64.b64encode(b'pixels').decode()}"
    assert sent == {"type": "image_url", "image_url": {"url": data}}
    assert text == {"type": "text", "text": "What is this?"}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (answer(None), "has no text"),
        ({"choices": []}, "has no text"),
        (answer(finish_reason="content_filter"), "'content_filter', which is unknown"),
        ({"error": "none"}, "cannot be read"),
    ],
)
async def test_an_answer_without_a_whole_text_is_asked_anew_then_fails(wrong, problem):
    hosted = Hosted(wrong, wrong)
    async with client_of(hosted) as client:
        with pytest.raises(EngineError, match=problem):
            await ask(client)
    assert len(hosted.bodies) == 2


async def test_no_model_and_no_server_are_reported():
    with pytest.raises(EngineError, match="lists no model; name one"):
        async with client_of(Hosted(models=())):
            pass
    with pytest.raises(RetryLater, match="does not answer"):
        async with TextEngineClient("http://127.0.0.1:1", SETTINGS, model=None):
            pass
