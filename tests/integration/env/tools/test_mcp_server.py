"""An MCP server's tools, whatever the server does."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from rl_agent.env.tools.environment import ToolsEnvironment
from rl_agent.errors import EnvironmentFailure
from tests.unit.env.tools.playing import call, played, task

SERVER = [sys.executable, str(Path(__file__).with_name("mcp_servers.py"))]


async def left_of(path):
    """The processes that servers wrote down and that still run; a killed one may take a moment to end."""
    stats = [Path(f"/proc/{pid}/stat") for pid in path.read_text().split()]
    for _ in range(100):
        left = [stat for stat in stats if stat.exists() and " Z " not in stat.read_text()]
        if not left:
            break
        await asyncio.sleep(0.05)
    return left


def server(kind, tmp_path):
    return {"functions": (), "mcp": {"command": [*SERVER, kind, str(tmp_path / "pids")]}}


@pytest.mark.parametrize("session", ["run", pytest.param("episode", marks=pytest.mark.extended)])
async def test_a_servers_tools_are_called_and_its_processes_end(tmp_path, session):
    kwargs = server("honest", tmp_path)
    added, failed, unknown = await played(
        call("add", a=17, b=25), call("fail"), call("fly"), session=session, **kwargs
    )

    assert added.observation.text == "42"
    assert failed.observation.text.startswith("error: ")
    assert unknown.invalid
    assert await left_of(tmp_path / "pids") == []


@pytest.mark.extended
async def test_a_server_that_hangs_costs_a_call_and_then_its_process(tmp_path):
    kwargs = server("hangs", tmp_path)
    answers = await played(*[call("hang")] * 3, call("add", a=1, b=2), tool_timeout_s=0.5, **kwargs)

    assert [answer.observation.text for answer in answers[:3]] == [
        "error: hang gave no answer within 0.5 s"
    ] * 3
    assert answers[3].observation.text == "3"  # of another process
    assert len((tmp_path / "pids").read_text().split()) == 2
    assert await left_of(tmp_path / "pids") == []


@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("dies", "is gone: it ended"),
        ("huge", "it sent more than 4 MiB in one message"),
        ("prints", "it wrote more than 100 lines that are not messages"),
    ],
)
async def test_a_broken_server_fails_its_episode_and_the_next_has_another(tmp_path, kind, reason):
    kwargs = server(kind, tmp_path) | {"verifier": "none"}
    first, second = ToolsEnvironment(**kwargs), ToolsEnvironment(**kwargs)
    try:
        await first.reset(task(), 0)
        with pytest.raises(EnvironmentFailure, match=reason):
            await first.step(call("break"))
        await second.reset(task(), 0)
        assert (await second.step(call("add", a=1, b=2))).observation.text == "3"
    finally:
        await ToolsEnvironment.close_shared()
    assert await left_of(tmp_path / "pids") == []


@pytest.mark.extended
async def test_a_server_that_chatters_is_heard_out(tmp_path):
    broken, added = await played(call("break"), call("add", a=1, b=2), **server("chatters", tmp_path))

    assert (broken.observation.text, added.observation.text) == ("3", "3")
    assert await left_of(tmp_path / "pids") == []


async def test_a_server_that_floods_the_log_is_heard_out_and_cut_there(tmp_path, capfd):
    broken, added = await played(call("break"), call("add", a=1, b=2), **server("floods", tmp_path))

    assert (broken.observation.text, added.observation.text) == ("3", "3")
    logged = capfd.readouterr().err
    assert "a line of a log" in logged
    assert len(logged) < 100_000
    assert logged.count("lines are left out") == 1


async def test_the_last_words_of_a_server_are_in_the_log(tmp_path, capfd):
    with pytest.raises(EnvironmentFailure):
        await played(call("add", a=1, b=2), **server("gone", tmp_path))
    assert "the key of the service is missing" in capfd.readouterr().err


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["silent", "gone"])
async def test_a_server_that_does_not_start_is_refused_in_one_line(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("rl_agent.env.tools.environment.START_TIMEOUT_S", 2.0)
    kwargs = server(kind, tmp_path)
    with pytest.raises(
        EnvironmentFailure, match=r"(does not start|cannot be listed): .*mcp_servers"
    ) as refusal:
        await ToolsEnvironment.tools(task(), mcp=kwargs["mcp"])
    await ToolsEnvironment.close_shared()

    assert "\n" not in str(refusal.value)
    assert await left_of(tmp_path / "pids") == []


@pytest.mark.extended
async def test_a_server_does_not_see_our_keys(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    (seen,) = await played(call("environment"), **server("honest", tmp_path))

    assert "secret" not in seen.observation.text
    assert os.environ["PATH"] in seen.observation.text
