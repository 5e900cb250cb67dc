"""Environments on servers: as here, until something happens to a server."""

import asyncio
from pathlib import Path
from socket import SHUT_RDWR

import aiohttp
import msgspec
import pytest
from aiohttp import web

from rl_agent.env.remote import server_api, wire
from rl_agent.env.remote.server import EnvironmentServer
from rl_agent.env.remote.worker import WorkerSetup
from rl_agent.errors import EnvironmentFailure, EnvironmentLost, EnvironmentRefusal, RetryLater
from rl_agent.http.tls import serving as serving_tls
from rl_agent.http.tls import trusting
from rl_agent.http.tokens import TokenCheck
from tests.support.certificate import make_certificate
from tests.unit.env.remote.pools import KINDS, TASK, begun, until
from tests.unit.env.remote.servers import TOKEN, connected, false_server, server, settings

BEARER = {"Authorization": f"Bearer {TOKEN}"}


async def test_an_instance_on_a_server_does_what_it_does_here():
    setup = WorkerSetup(KINDS, (), 8, {"obeying": {"greeting": "> "}})
    async with server(setup=setup) as (url, _, _), connected(url) as pool:
        instance, shown = await begun(pool)
        assert shown.text.startswith("> hello 7 ")
        result = await instance.step("look")
        assert (result.observation.text, result.reward, result.invalid) == ("1 look", 0.5, True)
        with pytest.raises(EnvironmentFailure, match="ValueError: oh"):
            await instance.step("raise oh")
        (picture,) = (await instance.step("picture x")).observation.images
        assert Path(picture).read_bytes() == b"x" * 100  # noqa: ASYNC240
        (second,) = (await instance.step("picture y")).observation.images
        assert Path(second).read_bytes() == b"y" * 100  # noqa: ASYNC240
        with pytest.raises(EnvironmentFailure, match="images take"):
            await instance.step(f"picture {'z' * 11_000}")
        with pytest.raises(EnvironmentRefusal, match="no kind 'other'"):
            await begun(pool, kind="other")
        await instance.close()
        assert not Path(second).exists()  # noqa: ASYNC240


@pytest.mark.extended
async def test_a_server_that_drains_ends_what_runs_and_begins_nothing():
    async with server() as (url, leaving, serving), connected(url, wait_s=0.5) as pool:
        instance, _ = await begun(pool)
        leaving.set()
        await until(lambda: pool.links[0].connection.caller.is_draining)
        assert (await instance.step("look")).observation.text == "1 look"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await begun(pool)
        await instance.close()
        async with asyncio.timeout(10):
            await serving


@pytest.mark.extended
async def test_a_client_that_is_silent_or_gone_leaves_nothing():
    async with server(client_timeout_s=1.0) as (url, _, _), aiohttp.ClientSession(headers=BEARER) as session:
        socket = await session.ws_connect(url + server_api.INSTANCES)
        await socket.send_bytes(wire.encode(wire.Make(0, 1, "obeying")))
        assert wire.read_answer(await socket.receive_bytes()) == wire.Made(0)
        assert (await _status(session, url)).used == 1
        async with asyncio.timeout(20):
            while (await _status(session, url)).used:  # noqa: ASYNC110 - asked of the server
                await asyncio.sleep(0.1)


async def test_a_client_that_goes_while_its_instances_are_closed_leaves_none():
    begun_closing, may_close, closed = asyncio.Event(), asyncio.Event(), []

    class ClosesSlowly:
        async def place(self):
            pass

        async def close(self):
            begun_closing.set()
            await may_close.wait()
            closed.append(self)

    class Pool:
        def create(self, *question):
            return ClosesSlowly()

    serving = EnvironmentServer(settings(), Pool())
    runner = web.AppRunner(serving.application(), handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession(headers=BEARER) as session, asyncio.timeout(20):
        socket = await session.ws_connect(url + server_api.INSTANCES)
        for number in range(3):
            await socket.send_bytes(wire.encode(wire.Make(number, number, "obeying")))
            await socket.receive_bytes()
        await socket.send_bytes(b"junk")
        await begun_closing.wait()
        socket.get_extra_info("socket").shutdown(SHUT_RDWR)  # aiohttp cancels the server's handler
        await asyncio.sleep(0.1)
        may_close.set()
        await until(lambda: len(closed) == 3)
        await until(lambda: not serving.used)
    await runner.cleanup()


@pytest.mark.parametrize("sent", [b"junk", wire.encode(wire.Made(1)), wire.encode(wire.Act(1, 1, "x"))[:-1]])
async def test_a_client_that_sends_no_message_is_cut_off(sent):
    async with server() as (url, _, _), aiohttp.ClientSession(headers=BEARER) as session:
        socket = await session.ws_connect(url + server_api.INSTANCES)
        await socket.send_bytes(sent)
        assert (await socket.receive(timeout=5)).type is not aiohttp.WSMsgType.BINARY
        assert (await _status(session, url)).used == 0


async def test_a_client_without_the_token_sees_only_if_the_server_is_up():
    async with server() as (url, _, _), aiohttp.ClientSession() as session:
        async with session.get(url + server_api.HEALTH) as answer:
            assert await answer.json() == {"status": "serving"}
        for path in (server_api.STATUS, server_api.INSTANCES, "/other"):
            async with session.get(url + path) as answer:
                assert answer.status == 401
        async with session.post(url + server_api.CHECK, data=b"x" * 100) as answer:
            assert answer.status == 401
        async with connected(url, token="other", wait_s=0.5) as pool:
            with pytest.raises(RetryLater, match="it answers 401"):
                await begun(pool)


TOOLS = {"tools": "rl_agent.env.tools.environment:ToolsEnvironment"}


async def test_settings_of_a_client_start_no_program_and_import_no_module(tmp_path, monkeypatch):
    ran = tmp_path / "ran"
    (tmp_path / "sent_module.py").write_text(f"open({str(ran)!r}, 'w')\ndef tool():\n    'A tool.'\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"mcp": {"command": ["/bin/sh", "-c", f"touch {ran}"]}, "functions": ["sent_module:tool"]}
    own = {"tools": {"functions": ["time:sleep"]}}
    async with (
        server(setup=WorkerSetup(TOOLS, (), 8, own)) as (url, _, _),
        aiohttp.ClientSession(headers=BEARER) as session,
    ):
        socket = await session.ws_connect(url + server_api.INSTANCES)
        await socket.send_bytes(msgspec.msgpack.encode(["Make", 0, 1, "tools", settings, 0]))
        assert (await socket.receive(timeout=5)).type is not aiohttp.WSMsgType.BINARY
        for sent in (settings, {"functions": ["sent_module:tool"]}, {"functions": ["time:sleep"], "mcp": {}}):
            question = server_api.CheckQuestion(("tools",), {"tools": sent})
            async with session.post(url + server_api.CHECK, data=msgspec.json.encode(question)) as answer:
                problem = msgspec.json.decode(await answer.read(), type=server_api.CheckAnswer).problem
            assert "give the run and env-server the same" in problem
            assert "time:sleep" not in problem
    assert not ran.exists()


FOREIGN = {"Host": "attacker.example"}


async def test_a_page_from_elsewhere_is_answered_by_no_route():
    paths = (server_api.STATUS, server_api.INSTANCES, "/other")
    async with server(tokens=TokenCheck((), None)) as (url, _, _), aiohttp.ClientSession() as session:
        for headers in (FOREIGN, {"Origin": "http://attacker.example"}, {"Sec-Fetch-Site": "cross-site"}):
            for path in paths:
                async with session.get(url + path, headers=headers) as answer:
                    assert answer.status == 403
            async with session.post(url + server_api.CHECK, data=b"{}", headers=headers) as answer:
                assert answer.status == 403
        async with session.get(url + server_api.STATUS) as answer:
            assert answer.status == 200


async def test_a_server_with_a_token_is_named_as_its_clients_like():
    async with server() as (url, _, _), aiohttp.ClientSession(headers=BEARER | FOREIGN) as session:
        assert (await _status(session, url)).used == 0


@pytest.mark.extended
async def test_tls(tmp_path):
    certificate, key = make_certificate(tmp_path)
    async with server(tls=serving_tls(certificate, key)) as (url, _, _):
        assert url.startswith("https://")
        async with connected(url, tls=trusting(certificate)) as pool:
            assert (await begun(pool))[1].text.startswith("hello")
        async with connected(url, tls=trusting(None), wait_s=0.5) as pool:
            with pytest.raises(RetryLater):
                await begun(pool)


async def _status(session, url):
    async with session.get(url + server_api.STATUS) as answer:
        return msgspec.json.decode(await answer.read(), type=server_api.ServerStatus)


LIES = {
    "junk": lambda question: b"junk",
    "wrong type": lambda question: wire.encode(wire.Shown(question.call, wire.Seen("x"))),
    "giant": lambda question: b"\xc6\xff\xff\xff\xff" + b"x" * 2**20,
    "paths": lambda question: wire.encode(
        wire.Shown(question.call, wire.Seen("x", ("/etc/passwd",)))
        if isinstance(question, wire.Reset)
        else wire.Made(question.call)
    ),
    "another's call": lambda question: wire.encode(wire.Made(question.call + 1000)),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_server_that_lies_is_left_for_one_that_does_not(lie):
    def answer(question):
        return LIES[lie](question) if isinstance(question, wire.Make | wire.Reset) else None

    async with false_server(answer) as liar, connected(liar) as pool:
        lost = (TimeoutError,) if lie == "another's call" else (EnvironmentLost,)
        instance = pool.create("obeying")
        with pytest.raises(lost):
            async with asyncio.timeout(2):
                await instance.reset(TASK, 1)


@pytest.mark.extended
async def test_a_server_that_is_frozen_is_lost_after_its_timeout():
    async def accept(reader, writer):
        try:
            await asyncio.sleep(600)
        finally:
            writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as frozen:
        port = frozen.sockets[0].getsockname()[1]
        async with connected(f"http://127.0.0.1:{port}", timeout_s=0.3, wait_s=1.0) as pool:
            with pytest.raises(RetryLater):
                await begun(pool)
        frozen.close()
