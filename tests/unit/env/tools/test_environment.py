"""An agent with tools: Python functions, and a real MCP server in a process of its own."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import pytest

from rl_agent.agent.tool_calls import action_of
from rl_agent.agent.tool_formats import ToolCall
from rl_agent.env.tools.environment import ToolsEnvironment
from rl_agent.errors import EnvironmentFailure
from rl_agent.types import Task

HERE = f"{__name__}:"
SERVER = [sys.executable, str(Path(__file__).with_name("mcp_servers.py"))]


def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


def sleep(seconds: float) -> str:
    """Sleep for some time."""
    time.sleep(seconds)
    return "slept"


def explode() -> str:
    """Fail."""
    raise OSError("no\nfuel")


def shout(times: int) -> str:
    """Say much."""
    return "a" * times


async def later(word: str) -> dict[str, str]:
    """Answer later."""
    await asyncio.sleep(0)
    return {"word": word}


def undescribed(a: int) -> int:
    return a


FUNCTIONS = tuple(HERE + one.__name__ for one in (add, sleep, explode, shout, later))


def task(**extra):
    return Task("t", "What is 17 + 25?", "tools", "easy", "42", extra)


def call(name, **arguments):
    return action_of(ToolCall(name, arguments))


async def played(*actions, **kwargs):
    """Return what each action was answered with; the environment is closed."""
    environment = ToolsEnvironment(**{"functions": FUNCTIONS, "verifier": "none"} | kwargs)
    try:
        await environment.reset(kwargs.pop("task", task()), 0)
        return [await environment.step(action) for action in actions]
    finally:
        await environment.close()
        await ToolsEnvironment.close_shared()


async def test_tools_are_called_until_the_answer_is_scored_by_the_tasks_verifier():
    called, answered = await played(call("add", a=17, b=25), "The sum is 42.", verifier="math")

    assert (called.observation.text, called.done, called.invalid) == ("42", False, False)
    assert (answered.reward, answered.done) == (1.0, True)


async def test_a_wrong_answer_earns_nothing():
    (answered,) = await played("41", verifier="math")

    assert (answered.reward, answered.done) == (0.0, True)


async def test_an_async_function_and_a_result_that_is_no_text():
    (called,) = await played(call("later", word="Äther"))

    assert json.loads(called.observation.text) == {"word": "Äther"}


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        (call("sub", a=1), "There is no tool 'sub'"),
        (call("add", a=1), "The arguments of add do not fit"),
        (call("add", a="one", b=2), "do not fit (at a)"),
    ],
)
async def test_a_call_that_does_not_fit_is_invalid(action, problem):
    (called,) = await played(action)

    assert called.invalid
    assert problem in called.observation.text


async def test_a_function_that_fails_or_hangs_is_told_to_the_agent():
    failed, hung, well = await played(
        call("explode"), call("sleep", seconds=2), call("add", a=1, b=2), tool_timeout_s=0.2
    )

    assert failed.observation.text == "error: OSError: no fuel"
    assert hung.observation.text == "error: sleep gave no answer within 0.2 s"
    assert well.observation.text == "3"


async def test_a_long_answer_is_cut():
    (called,) = await played(call("shout", times=10_000), max_answer_chars=100)

    assert called.observation.text == "a" * 100 + "\n[cut: 10000 characters]"


async def test_the_schema_is_that_of_the_signature_and_the_docstring():
    (schema, *_) = await ToolsEnvironment.tools(task(), functions=FUNCTIONS)

    function = schema["function"]
    assert (function["name"], function["description"]) == ("add", "Add two whole numbers.")
    assert function["parameters"]["required"] == ["a", "b"]
    assert function["parameters"]["properties"]["a"]["type"] == "integer"


async def test_a_task_may_allow_some_of_the_tools():
    (schema,) = await ToolsEnvironment.tools(task(tools=["later"]), functions=FUNCTIONS)

    assert schema["function"]["name"] == "later"
    with pytest.raises(ValueError, match="task t: no tool 'fly'; there are add, sleep"):
        await ToolsEnvironment.tools(task(tools=["fly"]), functions=FUNCTIONS)


@pytest.mark.parametrize(
    ("functions", "problem"),
    [
        (("add",), "'add' is not of the form package.module:function"),
        (("no.such:add",), "no.such:add cannot be imported: ModuleNotFoundError"),
        ((HERE + "nothing",), "cannot be imported: AttributeError"),
        ((HERE + "FUNCTIONS",), "is not a function"),
        ((HERE + "undescribed",), "has no docstring"),
        ((HERE + "add", HERE + "add"), "two are named 'add'"),
        ((), "neither functions nor mcp is given"),
    ],
)
async def test_functions_that_cannot_be_tools_are_refused(functions, problem):
    with pytest.raises(ValueError, match=problem):
        await ToolsEnvironment.tools(task(), functions=functions)


# --- an MCP server ---
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

    assert [one.observation.text for one in answers[:3]] == ["error: hang gave no answer within 0.5 s"] * 3
    assert answers[3].observation.text == "3"  # of another process
    assert len((tmp_path / "pids").read_text().split()) == 2
    assert await left_of(tmp_path / "pids") == []


@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("dies", "is gone: it ended"),
        ("huge", "it sent more than 4 MiB in one message"),
        ("prints", "it wrote more than 100 lines that are no messages"),
    ],
)
async def test_a_server_that_breaks_fails_its_episode_and_the_next_one_has_another(tmp_path, kind, reason):
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
