import asyncio
import json
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from rl_agent.engine.client import ClientSettings, EngineClient, pause_before
from rl_agent.engine.packed import MISSING, PATH, REQUEST, PromptImage, pack
from rl_agent.engine.wire import Sampling
from rl_agent.errors import ConfigError, EngineError, PromptTooLong, RetryLater
from tests.support.simulated_engine import completion

SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, max_tokens=50, seed=1)
CARD = {"id": "m", "root": "/models/m", "max_model_len": 64}


class Script:
    """An engine that answers completions from a list; `hang` and `cut` are answers too."""

    def __init__(self, *answers):
        self.answers = deque(answers)
        self.bodies, self.headers, self.pauses = [], [], []
        self.hanging, self.aborted = asyncio.Event(), asyncio.Event()
        self.is_healthy = self.is_serving = True
        self.has_packed = False

    async def handle(self, request):
        self.headers.append(request.headers)
        if request.path == "/v1/models":
            if not self.is_serving:
                return web.Response(status=503, text="no engine has joined yet")
            return web.json_response({"data": [CARD]})
        if request.path == "/health":
            return web.Response(status=200 if self.is_healthy else 503)
        if request.method == "GET":
            return web.Response(status=200 if self.has_packed and request.path == PATH else 404)
        self.bodies.append(json.loads(await request.read()))
        answer = self.answers.popleft()
        if answer == "hang":
            self.hanging.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.aborted.set()
                raise
        if answer == "cut":
            request.transport.abort()
            return web.Response()
        if isinstance(answer, int):
            return web.Response(status=answer, text="because")
        if isinstance(answer, bytes):
            return web.Response(body=answer)
        return web.json_response(answer, status=MISSING if "missing" in answer else 200)

    async def pause(self, seconds):
        self.pauses.append(seconds)


@asynccontextmanager
async def connected(script, *, retries=2, timeout_s=5.0, api_key=None, identify=lambda served: 7):
    settings = ClientSettings(timeout_s, retries, api_key)
    async with RawTestServer(script.handle) as server:
        url = f"http://127.0.0.1:{server.port}"
        client = EngineClient(url, settings, identify=identify, sleep=script.pause, jitter=lambda: 1.0)
        async with client:
            yield client


def ask(client, tokens=(1, 2, 3), sampling=SAMPLING, **more):
    return client.generate(tokens, sampling, request_id="a:0:0:0", **more)


def decode(prompt, response):
    return f"{prompt} {response}"


async def test_a_response_carries_the_weight_version_of_the_identified_model():
    async with connected(Script(completion(3, 3))) as client:
        generation = await ask(client)

    assert generation.token_ids == (18, 19, 2)
    assert generation.text == "01"
    assert (generation.weight_version_min, generation.weight_version_max) == (7, 7)
    assert generation.duration_s > 0


async def test_an_engine_that_is_no_pool_gets_no_parameters_of_one():
    script = Script(completion(3, 3))
    sampling = replace(SAMPLING, vocab_size=300)
    async with connected(script) as client:
        generation = await ask(client, [1, 2], sampling, decode=decode)

    assert generation.text == "[1, 2] (18, 19)"
    assert not {"detokenize", "vocab_size"} & script.bodies[0].keys()


def ask_with(client, *images):
    return client.generate_with_images([1, 9, 2], images, SAMPLING, request_id="a:0:0:0", decode=decode)


async def test_the_content_of_an_image_is_sent_once_and_again_if_asked(tmp_path):
    images = [PromptImage(letter * 64, tmp_path / letter) for letter in "ab"]
    for image in images:
        image.path.write_text(f"pixels of {image.path.name}")
    answered = pack([18, 2], [-1.0, -0.5], "stop", 2, [1, 9, 9, 2])
    script = Script(answered, answered, {"missing": ["a" * 64]}, answered, pack([18], [-1.0], "stop", 2))
    script.has_packed = True
    async with connected(script) as client:
        assert client.takes_images
        prompt, generation = await ask_with(client, images[0], images[0])
        assert (prompt, generation.token_ids, generation.text) == ((1, 9, 9, 2), (18, 2), "[1, 9, 2] (18,)")
        await ask_with(client, images[1], images[0])
        await ask_with(client, *images)
        with pytest.raises(EngineError, match="prompt_token_ids"):
            await ask_with(client, images[0])
    sent = [
        [(image.digest[0], image.content) for image in REQUEST.decode(json.dumps(body)).images]
        for body in script.bodies
    ]
    assert sent == [
        [("a", b"pixels of a"), ("a", None)],
        [("b", b"pixels of b"), ("a", None)],
        [("a", None), ("b", None)],
        [("a", b"pixels of a"), ("b", None)],
        [("a", None)],
    ]


async def test_a_server_that_loses_the_images_it_is_sent_fails_the_request(tmp_path):
    image = PromptImage("a" * 64, tmp_path / "a")
    script = Script({"missing": ["a" * 64]}, {"missing": ["b" * 64]})
    script.has_packed = True
    async with connected(script) as client:
        with pytest.raises(EngineError, match="No such file"):
            await ask_with(client, image)
        image.path.write_text("pixels")
        for _ in range(2):
            with pytest.raises(EngineError, match="has lost 1 images"):
                await ask_with(client, image)


async def test_an_engine_with_packed_tokens_is_asked_for_them():
    script = Script(
        b"half a frame", pack([18, 19, 2], [-1.0, -2.0, -0.5], "stop", 2), completion(3, 3), completion(3, 3)
    )
    script.has_packed = True
    async with connected(script) as client:
        sampling = replace(SAMPLING, vocab_size=300, stop_token_ids=(2,))
        packed = await ask(client, [1, 2], sampling, decode=decode)
        assert (await ask(client)).text == "01"
        sampling = replace(sampling, stop=("x",))  # only the other route finds texts
        assert (await ask(client, [1, 2], sampling, decode=decode)).text == "[1, 2] (18, 19)"

    assert (packed.token_ids, packed.logprobs) == ((18, 19, 2), (-1.0, -2.0, -0.5))
    assert (packed.text, packed.finish_reason) == ("[1, 2] (18, 19)", "stop")
    assert (packed.weight_version_min, packed.weight_version_max) == (7, 7)
    request = REQUEST.decode(json.dumps(script.bodies[1]))
    assert (request.prompt, request.interval, request.sampling.stop_token_ids) == ([1, 2], None, (2,))
    assert len(script.pauses) == 1, "half a frame was asked for anew"


def wrong_answer():
    answer = completion(3, 3)
    answer["choices"][0]["token_ids"][1] = -7
    return answer


async def test_response_tokens_are_counted_as_responses_return():
    async with connected(Script(completion(3, 3), completion(5, 5))) as client:
        counted = [client.response_tokens]
        for _ in range(2):
            await ask(client)
            counted.append(client.response_tokens)

    assert counted == [0, 3, 8]


async def test_the_wrong_model_is_found_on_entering():
    def refuse(served):
        raise ConfigError(f"serves {served.root}")

    with pytest.raises(ConfigError, match="/models/m"):
        async with connected(Script(), identify=refuse):
            pass


async def test_the_response_is_limited_to_what_the_context_has_left():
    script = Script(completion(3, 3))
    async with connected(script) as client:
        await ask(client, range(60))

    assert script.bodies[0]["max_tokens"] == 4


async def test_a_prompt_that_leaves_no_room_is_not_sent():
    script = Script()
    async with connected(script) as client:
        with pytest.raises(PromptTooLong):
            await ask(client, range(64))

    assert script.bodies == []


def aborted():
    answer = completion(2, 3)
    answer["choices"][0]["finish_reason"] = "abort"
    return answer


TROUBLES = {"500": 500, "503": 503, "429": 429, "cut": "cut", "abort": aborted(), "wrong": wrong_answer()}


@pytest.mark.parametrize("trouble", [*TROUBLES.values(), {}], ids=[*TROUBLES, "empty"])
async def test_trouble_is_met_with_another_attempt(trouble):
    script = Script(trouble, trouble, completion(3, 3))
    async with connected(script) as client:
        generation = await ask(client)

    assert (generation.finish_reason, generation.token_ids) == ("stop", (18, 19, 2))
    assert script.pauses == [1.0, 2.0]
    assert len({json.dumps(body) for body in script.bodies}) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_a_refused_request_is_not_sent_again(status):
    script = Script(status)
    async with connected(script) as client:
        with pytest.raises(EngineError, match=f"HTTP {status}: because"):
            await ask(client)

    assert len(script.bodies) == 1


@pytest.mark.parametrize(
    ("answer", "words"), [(500, "HTTP 500: because"), (wrong_answer(), "the server sent a token id -7")]
)
async def test_a_healthy_engine_that_keeps_failing_ends_the_episode(answer, words):
    async with connected(Script(answer, answer), retries=1) as client:
        with pytest.raises(EngineError, match=f"failed 2 times; the last: {words}"):
            await ask(client)


async def test_a_dead_engine_ends_the_rollout():
    script = Script(500)
    async with connected(script, retries=0) as client:
        script.is_healthy = False
        with pytest.raises(RetryLater, match="not healthy"):
            await ask(client)


async def test_a_pool_whose_engines_are_away_is_asked_again_later():
    script = Script()
    script.is_serving = False
    with pytest.raises(RetryLater, match="does not serve now: /v1/models answered 503: no engine has joined"):
        async with connected(script):
            pass


async def test_identifying_the_model_may_ask_the_server_and_wait():
    async with connected(Script(), identify=lambda served: asyncio.run(asyncio.sleep(0, 7))) as client:
        assert client.weight_version == 7


async def test_an_engine_that_is_not_there_is_named():
    client = EngineClient("http://127.0.0.1:9", ClientSettings(1.0, 0), identify=lambda served: 0)
    with pytest.raises(RetryLater, match=r"http://127\.0\.0\.1:9.* does not answer"):
        async with client:
            pass


async def test_a_missing_answer_is_a_timeout_and_is_not_repeated():
    script = Script("hang")
    async with connected(script, timeout_s=0.05) as client:
        with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
            await ask(client)
        async with asyncio.timeout(5):
            await script.aborted.wait()

    assert len(script.bodies) == 1


async def test_a_cancelled_request_closes_its_connection_so_the_engine_aborts():
    script = Script("hang")
    async with connected(script) as client, asyncio.TaskGroup() as jobs:
        job = jobs.create_task(ask(client))
        async with asyncio.timeout(5):
            await script.hanging.wait()
            job.cancel()
            await script.aborted.wait()


async def test_the_key_is_sent_where_there_is_one():
    script = Script()
    async with connected(script, api_key="secret"):
        pass

    assert script.headers[0]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("attempt", "jitter", "pause"),
    [(1, 1.0, 1.0), (1, 0.0, 0.1), (2, 1.0, 2.0), (4, 1.0, 8.0), (60, 1.0, 8.0)],
)
def test_pauses_double_up_to_eight_seconds_and_jitter_spreads_them(attempt, jitter, pause):
    assert pause_before(attempt, jitter) == pause
