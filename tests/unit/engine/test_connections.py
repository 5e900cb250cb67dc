"""An engine's connections, against servers over real sockets."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from aiohttp import BasicAuth, web
from aiohttp.test_utils import RawTestServer

from rl_agent.engine.connections import EngineConnections


@asynccontextmanager
async def connected(answer):
    """Yield what sends requests to a server that answers so."""
    async with RawTestServer(answer) as server:
        connections = EngineConnections(None)

        def send(method="POST", *, user=None, body=b"{}", timeout_s=10.0, scheme="http"):
            url = server.make_url("/a?b=%20").with_user(user).with_scheme(scheme)
            return connections.send(method, url, {"X-Run": "run"}, body, timeout_s)

        try:
            yield send
        finally:
            await connections.close()


def peer(request):
    return request.transport.get_extra_info("peername")[1]


async def echo(request):
    return web.Response(
        text=f"{peer(request)} {request.method} {request.raw_path} {request.headers['X-Run']}"
        f" {await request.text()}"
    )


async def half_answer(request):
    stream = web.StreamResponse()
    await stream.prepare(request)
    await stream.write(b"half")
    return stream


async def test_requests_of_all_methods_share_a_connection():
    async with connected(echo) as send:
        answers = [
            await send("POST", body=b"x" * 200_000),
            await send("GET", body=b""),
            await send("DELETE", body=b""),
        ]
    assert {status for status, _ in answers} == {200}
    words = [payload.decode().split(" ") for _, payload in answers]
    assert len({port for port, *_ in words}) == 1
    assert [more for _, *more in words] == [
        ["POST", "/a?b=%20", "run", "x" * 200_000],
        ["GET", "/a?b=%20", "run", ""],
        ["DELETE", "/a?b=%20", "run", ""],
    ]


async def test_as_many_requests_at_once_have_as_many_connections():
    everybody, ports = asyncio.Barrier(3), Counter()

    async def answer(request):
        ports[peer(request)] += 1
        async with everybody:
            return await echo(request)

    async with connected(answer) as send:
        for _ in range(2):
            await asyncio.gather(send(), send("GET"), send("DELETE"))
    assert sorted(ports.values()) == [2, 2, 2]


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_only_what_may_be_sent_twice_is_sent_again(method):
    methods = []

    async def answer(request):
        methods.append(request.method)
        if len(methods) == 2:
            request.transport.abort()  # as a server that drops an idle connection at this moment
        return await echo(request)

    async with connected(answer) as send:
        assert (await send())[0] == 200
        if method == "POST":
            with pytest.raises(ConnectionError):
                await send()
            assert methods == ["POST", "POST"]
        else:
            assert (await send(method))[0] == 200
            assert methods == ["POST", method, method]


async def test_a_redirect_is_followed_with_its_body():
    async def answer(request):
        if request.path == "/a":
            return web.Response(status=307, headers={"Location": "/there"})
        return await echo(request)

    async with connected(answer) as send:
        for _ in range(2):
            status, payload = await send(body=b"[1]")
            assert (status, payload.decode().split(" ")[1:]) == (200, ["POST", "/there", "run", "[1]"])


async def test_the_user_of_an_address_is_sent():
    async def answer(request):
        return web.Response(text=BasicAuth.decode(request.headers["Authorization"]).login)

    async with connected(answer) as send:
        assert await send(user="me") == (200, b"me")


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_an_answer_that_stops_ends_at_the_deadline_and_is_closed(method):
    closed = asyncio.Event()

    async def answer(request):
        await half_answer(request)
        try:
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with connected(answer) as send:
        with pytest.raises(TimeoutError):
            await send(method, timeout_s=0.2)
        await asyncio.wait_for(closed.wait(), 10)


async def test_an_engine_that_dies_in_an_answer_is_an_error_of_the_connection():
    async def answer(request):
        stream = await half_answer(request)
        request.transport.abort()
        return stream

    async with connected(answer) as send:
        with pytest.raises(ConnectionError):
            await send()


async def test_https_that_is_not_trusted_or_answered_is_an_error():
    async with connected(echo) as send:
        with pytest.raises(ConnectionError, match="SSL"):
            await send(scheme="https")
