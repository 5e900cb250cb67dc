"""Tools behind a URL: a real server of the MCP SDK, and servers that say what they should not."""

import asyncio
import resource
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from rl_agent.env.tools.environment import ToolsEnvironment
from rl_agent.errors import EnvironmentFailure
from tests.integration.env.tools.mcp_over_http import Liar
from tests.support.ports import quiet_port
from tests.unit.env.tools.playing import call, played, task

HONEST = [sys.executable, str(Path(__file__).with_name("mcp_over_http.py"))]


@contextmanager
def honest(port):
    with subprocess.Popen([*HONEST, str(port)], stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


async def listening(port):
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{port}/mcp"):
                    return {"functions": (), "mcp": {"url": f"http://127.0.0.1:{port}/mcp"}}
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def lying(kind):
    liar = Liar(kind)
    runner = web.AppRunner(liar.application(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield liar, {"functions": (), "mcp": {"url": f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"}}
    finally:
        await runner.cleanup()


@pytest.mark.extended
@pytest.mark.parametrize("session", ["run", "episode"])
async def test_tools_of_a_server_behind_a_url_are_called_and_long_answers_cut(session):
    port = quiet_port()
    with honest(port):
        kwargs = await listening(port) | {"session": session}
        added, cut = await played(call("add", a=17, b=25), call("shout", mebibytes=1), **kwargs)

        assert added.observation.text == "42"
        assert cut.observation.text == "a" * 4000 + "\n[cut: 1048576 characters]"
        with pytest.raises(EnvironmentFailure, match="more than 4 MiB in one message"):
            await played(call("shout", mebibytes=5), **kwargs)


@pytest.mark.extended
async def test_a_restarted_server_costs_its_episodes_and_none_after_them():
    port = quiet_port()
    first, second = (ToolsEnvironment(functions=(), mcp={"url": f"http://127.0.0.1:{port}/mcp"},
                                      verifier="none") for _ in range(2))  # fmt: skip
    try:
        with honest(port):
            await listening(port)
            await first.reset(task(), 0)
            assert (await first.step(call("add", a=1, b=2))).observation.text == "3"
        with honest(port):
            await listening(port)
            with pytest.raises(EnvironmentFailure, match="is gone: Session not found"):
                await first.step(call("add", a=1, b=2))
            await second.reset(task(), 0)
            assert (await second.step(call("add", a=1, b=2))).observation.text == "3"
    finally:
        await ToolsEnvironment.close_shared()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("flood", "more than 4 MiB in one message"),
        ("flood of events", "4194304"),
        ("bomb", "Failed to parse JSON"),
        ("prose", "Unexpected content type"),
        ("broken", "Failed to parse JSON"),
        ("busy", "error response"),
    ],
)
async def test_a_server_with_too_long_or_nonsense_answers_fails_its_episode(kind, reason):
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with lying(kind) as (liar, kwargs):
        with pytest.raises(EnvironmentFailure, match=reason) as failure:
            await played(call("add"), **kwargs)

    assert "\n" not in str(failure.value) and len(str(failure.value)) < 600
    assert liar.sent < 64 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 200 << 10


async def test_a_servers_refusal_reaches_the_agent():
    async with lying("refuses") as (_, kwargs):
        (refused,) = await played(call("add"), **kwargs)

    assert refused.observation.text == "error: a is not prime"
