"""Images through a manager: each comes once, goes once to an engine, and moves with its request."""

import asyncio
import hashlib
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

from rl_agent.engine.client import ClientSettings, EngineClient, PromptImage
from rl_agent.engine.packed import MISSING, PATH, REQUEST, pack
from rl_agent.engine.vllm_route import ImageCache
from rl_agent.engine.wire import Sampling
from tests.support.pool_setup import manager

IMAGE, END = 9, 2
SAMPLING = Sampling(0.0, 1.0, -1, 0.0, 20, 3)
SETTINGS = ClientSettings(request_timeout_s=30, retries=0)


class Seeing:
    """An engine that sees three tokens of an image, and says a token of each image and the end.

    One that `breaks` breaks each connection after a token.
    """

    def __init__(self, *, breaks=False):
        self.breaks = breaks
        self.cache = ImageCache()
        self.contents = []
        """The contents that it was sent."""

    async def generate(self, request):
        call = REQUEST.decode(await request.read())
        self.contents += [image.content for image in call.images if image.content is not None]
        files, missing = self.cache.take(call.images)
        if missing:
            return web.json_response({"missing": missing}, status=MISSING)
        said = call.prompt[call.prompt.index(END) + 1 :]
        response = [*(100 + file[-1] for file in files), END][len(said) :]
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

    async def about(self, request):
        card = {"id": "served", "root": "/models/one", "max_model_len": 512}
        routes = {"/v1/completions": {}, PATH: {}}
        pages = {"/openapi.json": {"paths": routes}, "/v1/models": {"data": [card]}}
        return web.json_response(pages.get(request.path, {}))

    @asynccontextmanager
    async def running(self):
        app = web.Application()
        app.router.add_post(PATH, self.generate)
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
    seen, made = await client.generate_with_images(prompt, images, SAMPLING, request_id="r", decode=decode)
    assert list(seen) == [1, *[IMAGE] * 3 * len(images), END], "as the model saw it, without what it said"
    return list(made.token_ids)


async def test_an_image_comes_once_and_goes_once_to_each_engine(tmp_path):
    engine, images = Seeing(), pictures(tmp_path, 4)
    async with manager() as pool, engine.running() as url:
        await pool.join(url)
        await pool.ready(1)
        for _ in range(2):  # another client, which does not know what the pool has
            async with EngineClient(pool.url, SETTINGS, identify=lambda served: 0) as client:
                assert await ask(client, images[:2]) == [100, 101, END]
                assert await ask(client, [images[1], images[3], images[1]]) == [101, 103, 101, END]
        assert sorted(engine.contents) == [images[n].path.read_bytes() for n in (0, 1, 3)]


async def test_a_request_with_images_goes_on_at_another_engine(tmp_path):
    breaking, whole, images = Seeing(breaks=True), Seeing(), pictures(tmp_path, 15)
    async with (
        manager("max_broken_attempts=1000") as pool,
        breaking.running() as first,
        whole.running() as second,
    ):
        await pool.join(first)
        await pool.ready(1)
        async with EngineClient(pool.url, SETTINGS, identify=lambda served: 0) as client:
            asked = asyncio.create_task(ask(client, images))
            await pool.until(lambda: any(len(each.token_ids) > 2 for each in pool.state.requests.values()))
            await pool.join(second)
            (request,) = pool.state.requests.values()
            assert await asked == [*range(100, 115), END]
        assert request.moves >= 3
        assert len({span.engine_id for span in request.spans}) == 2
    assert breaking.contents == whole.contents == [image.path.read_bytes() for image in images]
