"""Connections serve one request after the other."""

import asyncio
import socket
from contextlib import ExitStack, asynccontextmanager, closing

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from rl_agent.http.kept_connections import KeptConnections, head_of

HEAD = head_of("POST", URL("http://engine/tokens"), {"X-Run": "run"})


def keeping(keepalive_s=10.0):
    return closing(KeptConnections(keepalive_s=keepalive_s, connect_timeout_s=1.0))


@asynccontextmanager
async def asking(answer, *, keepalive_s=10.0):
    """A server, and what asks it."""
    app = web.Application()
    app.router.add_post("/tokens", answer)
    async with TestServer(app) as server:
        with keeping(keepalive_s) as kept:

            def ask(body=b"{}"):
                return kept.open(server.make_url("/"), HEAD, body)

            yield ask


async def whole(answer):
    parts = []
    while part := await answer.read():
        parts.append(part)
    return b"".join(parts)


def peer(request):
    return "{}:{}".format(*request.transport.get_extra_info("peername")[:2])


async def echo(request):
    return web.Response(text=f"{peer(request)} {await request.text()}")


@pytest.mark.parametrize(("keepalive_s", "connections"), [(10.0, 1), (0.0, 3)])
async def test_a_connection_serves_the_next_request_until_it_is_idle_too_long(keepalive_s, connections):
    async with asking(echo, keepalive_s=keepalive_s) as ask:
        peers = set[str]()
        for number in range(3):
            async with ask(str(number).encode() * 100_000) as answer:
                assert answer.status == 200
                address, _, body = (await whole(answer)).decode().partition(" ")
            assert body == str(number) * 100_000
            peers.add(address)
    assert len(peers) == connections


async def test_an_idle_connection_that_nobody_takes_is_closed():
    closed = asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        closed.set()

    async with served(serve) as url:
        with keeping(0.01) as kept:
            async with kept.open(url, HEAD, b"{}") as answer:
                assert not await whole(answer)
            await asyncio.wait_for(closed.wait(), 10)


async def test_requests_at_the_same_time_have_a_connection_each():
    everybody = asyncio.Barrier(3)

    async def answer_together(request):
        async with everybody:
            return await echo(request)

    async with asking(answer_together) as ask:

        async def one():
            async with ask() as answer:
                return await whole(answer)

        assert len(set(await asyncio.gather(one(), one(), one()))) == 3


async def test_an_answer_is_read_as_it_grows_and_closed_if_it_is_left():
    left = asyncio.Event()

    async def endless(request):
        stream = web.StreamResponse()
        await stream.prepare(request)
        try:
            while True:
                await stream.write(b"token ")
                await asyncio.sleep(0.001)
        finally:
            left.set()

    async with asking(endless) as ask:
        async with ask() as answer:
            assert (await answer.read()).startswith(b"token ")
        await asyncio.wait_for(left.wait(), 10)
        async with ask() as answer:
            assert (await answer.read()).startswith(b"token ")


@asynccontextmanager
async def served(serve):
    """The URL of a server that does with each connection what is given, then closes it."""

    async def connected(reader, writer):
        with closing(writer):
            await serve(reader, writer)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


@pytest.mark.parametrize(
    "raw_answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    ],
)
async def test_an_answer_that_is_no_whole_http_fails_the_connection(raw_answer):
    async def serve(reader, writer):
        await reader.readuntil(b"{}")
        writer.write(raw_answer)

    async with served(serve) as url:
        with keeping() as kept:
            for _ in range(2):
                with pytest.raises(ConnectionError):
                    async with kept.open(url, HEAD, b"{}") as answer:
                        await whole(answer)


async def test_a_connection_that_the_server_closed_is_not_taken_again():
    async def serve(reader, writer):
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with served(serve) as url:
        with keeping() as kept:
            for _ in range(3):
                async with kept.open(url, HEAD, b"{}") as answer:
                    assert await whole(answer) == b"ok"
                await asyncio.sleep(0.05)


async def test_an_answer_that_nobody_asked_for_is_no_answer_to_the_next_request():
    async def serve(reader, writer):
        await reader.readuntil(b"{}")
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
        writer.write(answer + b"ok" + answer + b"no")
        await reader.read()

    async with served(serve) as url:
        with keeping() as kept:
            for _ in range(3):
                async with kept.open(url, HEAD, b"{}") as answer:
                    assert await whole(answer) == b"ok"


async def test_an_address_where_nobody_listens_fails_the_connection():
    async with served(None) as url:
        pass
    with keeping() as kept, pytest.raises(ConnectionError, match="Connect"):
        async with kept.open(url, HEAD, b"{}"):
            pass


async def test_a_server_that_accepts_no_connection_fails_it_in_time():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as queue:
        while True:
            waiting = queue.enter_context(socket.socket())
            waiting.settimeout(0.2)
            try:
                waiting.connect(full.getsockname())
            except TimeoutError:
                break
        url = URL(f"http://127.0.0.1:{full.getsockname()[1]}")
        with keeping() as kept, pytest.raises(ConnectionError, match=f"no connection to {url} within 1 s"):
            async with kept.open(url, HEAD, b"{}"):
                pass


def test_a_header_with_a_line_break_is_refused_without_its_value():
    with pytest.raises(ValueError, match=r"^the value of the header Authorization has a line break$"):
        head_of("POST", URL("http://engine/tokens"), {"Authorization": "Bearer secret\n"})
