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
        ({"functions": "calculator:add"}, "functions is 'calculator:add'; write a list"),
        ({"functions": ["calculator.add"]}, "'calculator.add' is not of the form package.module:function"),
        ({"functions": ["no_such_module:add"]}, "no_such_module:add cannot be imported"),
        ({"functions": [1]}, "functions: 1 is not of the form"),
        ({"functions": ADD, "sesion": "run"}, "got an unexpected keyword argument 'sesion'"),
        ({"functions": ADD, "session": "job"}, "session is 'job'; use run, episode"),
        ({"functions": ADD, "verifier": "Math"}, "verifier is 'Math'; use math, reasoning_gym, none"),
        ({"functions": ADD, "tool_timeout_s": 0}, "tool_timeout_s is 0"),
        ({"functions": ADD, "tool_timeout_s": "30"}, "tool_timeout_s is '30'"),
        ({"functions": ADD, "max_answer_chars": -1}, "max_answer_chars is -1"),
        ({"functions": ADD, "workers": True}, "workers is True"),
        ({"functions": ADD, "verify_timeout_s": float("nan")}, "verify_timeout_s is nan"),
        ({"mcp": "http://127.0.0.1:8000/mcp"}, "mcp is not a group of keys"),
        ({"mcp": {"command": "python server.py"}}, "mcp.command is a list of words"),
        ({"mcp": {"command": 1}}, "mcp.command is a list of words"),
        ({"mcp": {"url": "127.0.0.1:8000"}}, "begins with neither http:// nor https://"),
        ({"mcp": COMMAND | {"env": ["A=B"]}}, "mcp.env is not a group"),
        ({"mcp": COMMAND | {"cwd": 1}}, "mcp.cwd is 1; name a folder"),
        ({"mcp": COMMAND | {"timeout": 1}}, "mcp.timeout: there are command, cwd"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(kwargs, named):
    setup = WorkerSetup(
        {"tools": "rl_agent.env.tools.environment:ToolsEnvironment"}, (), 1, {"tools": kwargs}
    )
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
