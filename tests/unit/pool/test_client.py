"""A manager that refuses is told from one that is not well, and a wrong token from the rest."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from rl_agent.errors import ConfigError, RetryLater
from rl_agent.pool.client import TokenRefused, ask


async def ask_who_answers(body, status=200):
    async def answer(request):
        return web.Response(text=body, status=status, content_type="application/json")

    async with RawTestServer(answer) as server:
        await asyncio.to_thread(ask, str(server.make_url("/")), "/status", "token")


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
    with pytest.raises(raised, match=f"/status answers {status}: ") as caught:
        await ask_who_answers("{}", status)
    assert type(caught.value) is raised


@pytest.mark.parametrize("body", ["[]", "null", "3", '"engines"'])
async def test_what_answers_no_object_is_no_manager(body):
    with pytest.raises(RetryLater, match="answers no JSON object, so it is not a manager"):
        await ask_who_answers(body)
