"""A vLLM with our route is asked by tokens where nobody needs text, and by text otherwise."""

import pytest
from aiohttp import web

from rl_agent.engine.packed import MISSING, ImageContent, pack
from rl_agent.pool.engines.answers import Refused, StreamError
from tests.unit.pool.engines.adapter_wires import (
    PIECES,
    ROUTES,
    collect,
    engine,
    response,
    tokens_of,
    vllm,
)

STATED = {"temperature": 0.5, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
STATED |= {"repetition_penalty": 1.0, "skip_special_tokens": False}
TEXT, TOKENS = ROUTES["packed"]


def either_way(request, forbids=200):
    """An engine with both routes, whose answers tell by which one it was asked."""
    if request.path == TOKENS and forbids != 200:
        return web.json_response({"error": {"message": "not so"}}, status=forbids)
    if request.path == TEXT:
        return response(vllm)
    tokens = [token for piece, _ in PIECES for token in piece]
    return web.Response(body=pack(tokens, [-1.0] * len(tokens), "stop", 14))


async def ways_of(link, paths, params, **more):
    """The routes that one request takes; it must succeed."""
    before = len(paths)
    chunks = await collect(link, params, **more)
    assert tokens_of(chunks) == [11, 12, 13, 14] and chunks[-1].finish_reason == "stop"
    return paths[before:]


@pytest.mark.parametrize(
    ("params", "more", "way"),
    [
        (STATED, {"needs_text": False}, TOKENS),
        (STATED | {"repetition_penalty": 1.2, "min_tokens": 3}, {"needs_text": False}, TOKENS),
        (STATED, {}, TEXT),
        (STATED, {"needs_text": False, "token_by_token": True}, TEXT),
        ({"top_p": 1.0, "top_k": -1}, {"needs_text": False}, TEXT),  # min_p: the model's own files may say
        (STATED, {"needs_text": False, "needs_names": True}, TEXT),
        (STATED | {"logit_bias": {"11": 200.0}}, {"needs_text": False}, TEXT),
        (STATED | {"no_such_thing": 1}, {"needs_text": False}, TEXT),
    ],
)
async def test_requests_without_text_go_by_tokens_with_equal_results(params, more, way):
    paths = []
    async with engine("packed", lambda request: paths.append(request.path) or either_way(request)) as link:
        assert await ways_of(link, paths, params, **more) == [way]


def forbidding(paths, status, *, text_status=200):
    """An engine that answers otherwise by tokens."""

    def answer(request):
        paths.append(request.path)
        if request.path == TEXT and text_status != 200:
            return web.json_response({"error": {"message": "nor so"}}, status=text_status)
        return either_way(request, forbids=status)

    return answer


@pytest.mark.parametrize("status", [400, 403, 404, 422])
async def test_engine_that_refuses_only_token_requests_gets_text_requests(status):
    paths = []
    async with engine("packed", forbidding(paths, status)) as link:
        assert await ways_of(link, paths, STATED, needs_text=False) == [TOKENS, TEXT]
        assert await ways_of(link, paths, STATED, needs_text=False) == [TEXT]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_an_engine_that_fails_by_tokens_is_asked_otherwise_and_so_again(status):
    paths = []
    async with engine("packed", forbidding(paths, status)) as link:
        for _ in range(2):
            assert await ways_of(link, paths, STATED, needs_text=False) == [TOKENS, TEXT]


async def test_request_refused_on_both_routes_does_not_disable_tokens():
    paths = []
    async with engine("packed", forbidding(paths, 400, text_status=400)) as link:
        for _ in range(2):
            with pytest.raises(Refused, match="nor so"):
                await collect(link, STATED, needs_text=False)
    assert paths == [TOKENS, TEXT] * 2


async def test_an_engine_is_sent_each_image_once_and_again_if_asked():
    bodies = []

    async def answer(request):
        bodies.append(await request.json())
        if len(bodies) == 3:
            return web.json_response({"missing": ["a" * 64]}, status=MISSING)
        return web.Response(body=pack([7], [-1.0], "stop", 7, [1, 5, 5, 3]))

    async def read_images(digests, new):
        return [ImageContent(digest, b"pixels" if digest in new else None) for digest in digests]

    async with engine("packed", answer) as link:
        link.read_images = read_images
        for images in (("a" * 64,), ("b" * 64, "a" * 64), ("a" * 64, "b" * 64)):
            (chunk,) = await collect(link, STATED, needs_text=False, images=images)
            assert (chunk.token_ids, chunk.prompt_token_ids) == ((7,), (1, 5, 5, 3))
    sent = [[image["digest"][0] for image in body["images"] if "content" in image] for body in bodies]
    assert sent == [["a"], ["b"], [], ["a"]]


async def test_an_engine_that_loses_the_images_it_is_sent_breaks_the_attempt():
    async def read_images(digests, new):
        return [ImageContent(digest, b"pixels") for digest in digests]

    missing = web.json_response({"missing": ["a" * 64]}, status=MISSING)
    async with engine("packed", lambda request: missing) as link:
        link.read_images = read_images
        with pytest.raises(StreamError, match="has lost 1 images"):
            await collect(link, STATED, needs_text=False, images=("a" * 64,))


@pytest.mark.parametrize(
    ("kind", "params", "more"),
    [
        ("vllm", STATED, {"needs_text": False}),
        ("packed", STATED, {}),
        ("packed", {}, {"needs_text": False}),
        ("packed", STATED, {"needs_text": False, "token_by_token": True}),
    ],
)
async def test_images_are_refused_where_an_engine_cannot_take_them(kind, params, more):
    async with engine(kind, lambda request: web.Response(status=500)) as link:
        with pytest.raises(Refused, match="images: an engine takes them if"):
            await collect(link, params, images=("a" * 64,), **more)
