"""The status of a server, which a slow network delivers in parts and a liar without end."""

import asyncio
import json

import pytest

from rl_agent.env.remote import wire
from rl_agent.env.remote.wire import VERSION
from rl_agent.errors import EnvironmentLost, RetryLater
from tests.unit.env.remote.pools import begun, until
from tests.unit.env.remote.servers import STATUS, connected, false_server, server

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"


async def problem_with(*parts, pause_s=0.1):
    """Return why a server that sends its status so, and nothing else, is not connected."""

    async def answer(reader, writer):
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1]
        if path.endswith(b"/status"):
            writer.write(HEAD)
            for part in parts:
                await asyncio.sleep(pause_s)
                writer.write(part)
                await writer.drain()
        else:
            writer.write(b"HTTP/1.1 418 I'm a teapot\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with connected(f"http://127.0.0.1:{port}", timeout_s=2.0, wait_s=1.0) as pool:
            with pytest.raises(RetryLater) as refusal:
                await begun(pool)
        listening.close()
    return str(refusal.value)


async def test_a_status_that_arrives_in_parts_is_read_whole():
    content = json.dumps(STATUS).encode()

    assert "418" in await problem_with(content[:20], content[20:])


async def test_a_status_without_end_is_none():
    assert "longer than" in await problem_with(*[b" " * 2**16] * 20, pause_s=0)


async def test_a_status_of_another_version_is_named_by_its_version():
    content = json.dumps({"version": 7, "anything": "else"}).encode()

    assert f"it speaks version 7 of the protocol, not {VERSION}" in await problem_with(content)


async def test_a_server_that_only_answers_pings_costs_an_attempt_elsewhere():
    questions = []
    async with (
        false_server(questions.append) as mute,
        server() as (other, _, _),
        connected(mute, other, make_timeout_s=2.0) as pool,
    ):
        await until(lambda: all(link.connection for link in pool.links))
        first = await asyncio.gather(*(begun(pool) for _ in range(4)), return_exceptions=True)
        failed = [str(result) for result in first if isinstance(result, EnvironmentLost)]
        again = await asyncio.gather(*(begun(pool) for _ in failed))
        closings = lambda: [each for each in questions if isinstance(each, wire.CloseInstance)]  # noqa: E731
        await until(lambda: len(closings()) == len(failed))
        for instance, _ in [*again, *(result for result in first if isinstance(result, tuple))]:
            await instance.close()

    assert set(failed) == {f"environment server {mute}: it has made no environment within 2 s"}
