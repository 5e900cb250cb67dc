"""The settings of the kind `tools`: what is wrong is said before a run starts, in one line that names it."""

import re
import sys

import pytest

from rl_agent.env.registry import EnvironmentRegistry
from rl_agent.env.remote.worker import WorkerSetup
from rl_agent.env.tools.environment import ToolsEnvironment
from rl_agent.errors import ConfigError, EnvironmentUnavailable
from tests.unit.env.tools.playing import HERE

ADD = [f"{HERE}add"]
COMMAND = {"command": [sys.executable, "server.py"]}


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({}, "neither functions nor mcp is set"),
        ({"functions": "calculator:add"}, "functions='calculator:add': expected a valid tuple"),
        ({"functions": ["calculator.add"]}, "'calculator.add' is not of the form package.module:function"),
        ({"functions": ["no_such_module:add"]}, "no_such_module:add cannot be imported"),
        ({"functions": [1]}, "functions.0=1: expected a valid string"),
        ({"functions": ADD, "sesion": "run"}, "sesion: there is no such setting"),
        ({"functions": ADD, "session": "job"}, "session='job': expected 'run' or 'episode'"),
        ({"functions": ADD, "verifier": "Math"}, "verifier='Math': expected 'math', 'reas"),
        ({"functions": ADD, "tool_timeout_s": 0}, "tool_timeout_s=0: expected"),
        ({"functions": ADD, "max_answer_chars": -1}, "max_answer_chars=-1: expected"),
        ({"functions": ADD, "verify_timeout_s": float("nan")}, "verify_timeout_s=nan: expected"),
        ({"mcp": "http://127.0.0.1:8000/mcp"}, "mcp='http://127.0.0.1:8000/mcp': expected"),
        ({"mcp": {"command": "python server.py"}}, "mcp.command='python server.py': expected a valid tuple"),
        ({"mcp": {"command": 1}}, "mcp.command=1: expected a valid tuple"),
        ({"mcp": {"url": "127.0.0.1:8000"}}, "mcp.url='127.0.0.1:8000': "),
        ({"mcp": COMMAND | {"env": ["A=B"]}}, "mcp.env: expected a valid dictionary"),
        ({"mcp": COMMAND | {"cwd": []}}, "mcp.cwd: expected a valid string"),
        ({"mcp": COMMAND | {"timeout": 1}}, "mcp.timeout: there is no such setting"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(kwargs, named):
    kinds = {"tools": "rl_agent.env.tools.environment:ToolsEnvironment"}
    setup = WorkerSetup(kinds, (), 1, {"tools": kwargs})
    with pytest.raises(ConfigError, match=re.escape(named)) as refusal:
        EnvironmentRegistry(setup).check(["tools"])

    assert str(refusal.value).startswith("env_config.kwargs.tools: ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("mcp", "named"),
    [
        ({"command": ["no-such-program"]}, "mcp.command: there is no program no-such-program"),
        ({"command": ["./server"]}, "mcp.command: there is no program ./server"),
        (COMMAND | {"cwd": "/no/such/folder"}, "mcp.cwd=/no/such/folder: there is no such folder"),
    ],
)
def test_a_server_that_this_machine_lacks_is_named(mcp, named):
    with pytest.raises(EnvironmentUnavailable, match=re.escape(f"env_config.kwargs.tools.{named}")):
        ToolsEnvironment.check_settings(mcp=mcp)


def test_settings_that_are_right_are_taken(tmp_path):
    (tmp_path / "server").touch(mode=0o755)
    ToolsEnvironment.check_settings(functions=ADD, tool_timeout_s=1, verifier="none")
    ToolsEnvironment.check_settings(mcp={"command": ["./server"], "cwd": str(tmp_path)}, session="episode")
    ToolsEnvironment.check_settings(mcp={"url": "https://example.org/mcp", "headers": {"A": "b"}})
