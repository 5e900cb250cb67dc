"""A manager that refuses is told from one that is not well, and a wrong token from the rest."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rl_agent.errors import ConfigError, RetryLater
from rl_agent.pool.client import TokenRefused, ask


@pytest.mark.parametrize(
    ("status", "raised"),
    [
        (401, TokenRefused),
        (403, TokenRefused),
        (404, ConfigError),
        (422, ConfigError),
        (429, RetryLater),
        (500, RetryLater),
    ],
)
async def test_a_status_says_what_is_to_be_done(status, raised):
    async def answer(request):
        return web.json_response({}, status=status)

    app = web.Application()
    app.router.add_get("/status", answer)
    async with TestServer(app) as server:
        with pytest.raises(raised, match=f"/status answers {status}: ") as caught:
            await asyncio.to_thread(ask, str(server.make_url("/")), "/status", "token")
    assert type(caught.value) is raised


@pytest.mark.parametrize("body", ["[]", "null", "3", '"engines"'])
async def test_what_answers_no_object_is_no_manager(body):
    async def answer(request):
        return web.Response(text=body, content_type="application/json")

    app = web.Application()
    app.router.add_get("/status", answer)
    async with TestServer(app) as server:
        with pytest.raises(RetryLater, match="answers no JSON object, so it is not a manager"):
            await asyncio.to_thread(ask, str(server.make_url("/")), "/status", "token")
