"""Images through a manager: each comes once, goes once to an engine, and moves with its request."""

import asyncio
import base64
import gc
import hashlib
import tracemalloc
from contextlib import asynccontextmanager

import aiohttp
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rl_agent.engine.packed import MISSING, PATH, RENDER_PATH, REQUEST, ImageContent, PromptImage, pack
from rl_agent.engine.vllm_route import ImageCache
from rl_agent.engine.wire import Sampling, completion_request
from tests.support.pool_setup import collector, manager

IMAGE, END = 9, 2
SAMPLING = Sampling(0.0, 1.0, -1, 0.0, 20, 3)


class Seeing:
    """An engine that sees three tokens of an image, and says a token of each image and the end.

    One that `breaks` breaks each connection after a token. One that does not render has no such route.
    """

    def __init__(self, *, breaks=False, renders=True):
        self.breaks = breaks
        self.renders = renders
        self.cache = ImageCache()
        self.contents = []
        """The contents that it was sent."""

    async def generate(self, request):
        call = REQUEST.decode(await request.read())
        self.contents += [image.content for image in call.images if image.content is not None]
        files, missing = self.cache.take(call.images)
        if missing:
            return web.json_response({"missing": missing}, status=MISSING)
        begun = call.prompt[call.prompt.index(END) + 1 :]
        response = [*(100 + file[-1] for file in files), END][len(begun) :]
        seen = [piece for token in call.prompt for piece in [token] * (3 if token == IMAGE else 1)]
        stream = web.StreamResponse()
        await stream.prepare(request)
        for number, token in enumerate(response):
            reason = "stop" if token == END else None
            await stream.write(pack([token], [-0.5], reason, None, () if number else seen))
            if self.breaks:
                request.transport.abort()
                break
        return stream

    async def render(self, request):
        """A token for each image of a chat, which brings none."""
        if not self.renders:
            raise web.HTTPNotFound
        call = await request.json()
        parts = [part for message in call["messages"] for part in message["content"]]
        images = [part for part in parts if part["type"] == "image_url"]
        assert all(part["image_url"] is None for part in images)
        sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        return web.json_response({"token_ids": [1, *[IMAGE] * len(images), END], "sampling": sampling})

    async def read(self, request):
        """The texts of tokens, or the message of a chat that they are; vLLM 0.26 wants its model named."""
        call = await request.json()
        assert call["model"] == "served"
        if "chat_request" in call:
            (choice,) = call["generate_response"]["choices"]
            message = {"content": " ".join(map(str, choice["token_ids"]))}
            return web.json_response({"choices": [{"message": message}]})
        (response,) = call["generate_responses"]
        texts = [" ".join(map(str, choice["token_ids"])) for choice in response["choices"]]
        return web.json_response({"choices": [{"text": text} for text in texts]})

    async def about(self, request):
        card = {"id": "served", "root": "/models/one", "max_model_len": 512}
        routes = {"/v1/completions": {}, PATH: {}}
        pages = {"/openapi.json": {"paths": routes}, "/v1/models": {"data": [card]}}
        return web.json_response(pages.get(request.path, {}))

    @asynccontextmanager
    async def running(self):
        app = web.Application()
        app.router.add_post(PATH, self.generate)
        app.router.add_post(RENDER_PATH, self.render)
        app.router.add_post("/v1/{path:.*}/derender", self.read)
        app.router.add_get("/{path:.*}", self.about)
        async with TestServer(app) as server:
            yield str(server.make_url("")).rstrip("/")


def pictures(folder, count):
    """Files of which the last byte is their number."""
    images = []
    for number in range(count):
        content = b"pixels" + bytes([number])
        path = folder / str(number)
        path.write_bytes(content)
        images.append(PromptImage(hashlib.sha256(content).hexdigest(), path))
    return images


async def ask(client, images):
    prompt = [1, *[IMAGE] * len(images), END]
    decode = lambda prompt, response: ""  # noqa: E731
    seen, generation = await client.generate_with_images(
        prompt, images, SAMPLING, request_id="r", decode=decode
    )
    assert list(seen) == [1, *[IMAGE] * 3 * len(images), END], "as the model saw it, without what it said"
    return list(generation.token_ids)


async def test_an_image_comes_once_and_goes_once_to_each_engine(tmp_path):
    engine, images = Seeing(), pictures(tmp_path, 4)
    async with manager() as pool, engine.running() as url:
        await pool.join_ready(url)
        for _ in range(2):  # another client, which does not know what the pool has
            async with collector(pool.url) as client:
                assert await ask(client, images[:2]) == [100, 101, END]
                assert await ask(client, [images[1], images[3], images[1]]) == [101, 103, 101, END]
        assert sorted(engine.contents) == [images[n].path.read_bytes() for n in (0, 1, 3)]


async def test_an_image_of_several_requests_at_once_goes_once_to_an_engine(tmp_path):
    engine, images = Seeing(), pictures(tmp_path, 3)
    async with manager() as pool, engine.running() as url:
        await pool.join_ready(url)
        async with collector(pool.url) as client:
            calls = [ask(client, [images[0], images[1 + number % 2]]) for number in range(8)]
            for number, tokens in enumerate(await asyncio.gather(*calls)):
                assert tokens == [100, 101 + number % 2, END]
        assert sorted(engine.contents) == [image.path.read_bytes() for image in images]


async def test_a_request_with_images_goes_on_at_another_engine(tmp_path):
    breaking, whole, images = Seeing(breaks=True), Seeing(), pictures(tmp_path, 15)
    async with (
        manager("max_broken_attempts=1000") as pool,
        breaking.running() as first,
        whole.running() as second,
    ):
        await pool.join_ready(first)
        async with collector(pool.url) as client:
            call = asyncio.create_task(ask(client, images))
            await pool.until(lambda: any(len(each.token_ids) > 2 for each in pool.state.requests.values()))
            await pool.join(second)
            (request,) = pool.state.requests.values()
            assert await call == [*range(100, 115), END]
        assert request.moves >= 3
        assert len({span.engine_id for span in request.spans}) == 2
    assert breaking.contents == whole.contents == [image.path.read_bytes() for image in images]


def shown(image):
    content = base64.b64encode(image.path.read_bytes()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{content}"}}


async def chat(pool, *parts, **more):
    """Ask as OpenAI's own client does."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "Look"}, *parts]}]
    async with openai.AsyncOpenAI(base_url=pool.url + "/v1", api_key="none", max_retries=0) as client:
        more |= {"model": pool.state.model, "messages": messages, "max_tokens": 20}
        return await client.chat.completions.create(**more)


@asynccontextmanager
async def both_joined(pool, first, second):
    async with first.running() as first_url, second.running() as second_url:
        await pool.join_ready(first_url, second_url)
        yield


async def test_a_chat_with_images_goes_on_at_another_engine(tmp_path):
    breaking, whole, images = Seeing(breaks=True), Seeing(), pictures(tmp_path, 3)
    async with manager("max_broken_attempts=1000") as pool, both_joined(pool, breaking, whole):
        parts = [shown(images[n]) for n in (2, 0, 2)]
        answer = await chat(pool, *parts, logprobs=True, n=2, extra_body={"return_token_ids": True})
        assert answer.prompt_token_ids == [1, *[IMAGE] * 9, END] and answer.usage.prompt_tokens == 11
        for choice in answer.choices:
            assert choice.message.content == "102 100 102"
            assert [entry.token for entry in choice.logprobs.content] == ["102", "100", "102", str(END)]
        assert (await chat(pool, *parts[:2])).choices[0].message.content == "102 100"
    sent = {images[n].path.read_bytes() for n in (0, 2)}
    assert {*breaking.contents, *whole.contents} == sent


async def test_chats_with_images_are_refused_in_a_line(tmp_path):
    (image,) = pictures(tmp_path, 1)
    async with manager() as pool, Seeing(renders=False).running() as url:
        await pool.join_ready(url)
        elsewhere = {"type": "image_url", "image_url": {"url": "https://host/a.png"}}
        with pytest.raises(openai.BadRequestError, match="no address is followed"):
            await chat(pool, elsewhere)
        with pytest.raises(openai.BadRequestError, match="stop: a chat with images does not support it"):
            await chat(pool, shown(image), stop=["no"])
        with pytest.raises(openai.APIStatusError, match=f"the engines of this pool have no {RENDER_PATH}"):
            await chat(pool, shown(image))


async def test_a_chat_with_images_finds_the_engine_that_takes_it(tmp_path):
    (image,) = pictures(tmp_path, 1)
    older, newer = Seeing(renders=False), Seeing()
    async with manager() as pool, both_joined(pool, older, newer):
        assert (await chat(pool, shown(image))).choices[0].message.content == "100"


class Holding(Seeing):
    """An engine that gives a token and then nothing, and keeps no image itself."""

    def __init__(self):
        super().__init__()
        self.held = 0
        self.may_end = asyncio.Event()

    async def generate(self, request):
        prompt = REQUEST.decode(await request.content.read()).prompt
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(pack([5], [-0.5], None, None, prompt))
        self.held += 1
        await self.may_end.wait()
        await stream.write(pack([END], [-0.5], "stop", None))
        return stream


@pytest.mark.parametrize("places", [8, 2])
async def test_images_of_open_requests_take_no_memory(places):
    count, size = 8, 2**19

    async def body(number):
        content = bytes([number]) * size
        image = ImageContent(hashlib.sha256(content).hexdigest(), content)
        yield completion_request(
            "/models/one", [1, IMAGE, END], SAMPLING, f"r{number}", needs_text=False, images=[image]
        )

    async def ask_for(session, url, number):
        headers = {"Content-Type": "application/json"}
        async with session.post(url, data=body(number), headers=headers) as answer:
            assert answer.status == 200, await answer.text()

    engine = Holding()
    async with manager("stall_timeout_s=60") as pool, engine.running() as url:
        await pool.join_ready(url, capacity=places)
        tracemalloc.start()
        try:
            async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as jobs:
                for number in range(count):
                    jobs.create_task(ask_for(session, pool.url + "/v1/completions", number))
                await pool.until(lambda: engine.held == places and len(pool.state.requests) == count)
                await pool.until(lambda: memory_held() < count * size / 2)
                engine.may_end.set()
        finally:
            tracemalloc.stop()


def memory_held():
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
