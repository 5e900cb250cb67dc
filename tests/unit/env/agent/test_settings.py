"""The settings of an agent's program."""

import re

import pytest

from rl_agent.env.agent.settings import AgentSettings
from rl_agent.errors import ConfigError
from rl_agent.types import Task

TASK = Task("t", "What is {1}?", "agent", "easy", answer="1", extra={"city": "Rome"})


def test_a_command_may_be_a_text_or_a_list():
    text = AgentSettings.of(command="python 'my agent.py' --fast")
    assert text.command == ("python", "my agent.py", "--fast")
    assert AgentSettings.of(command=["a b", "c"]).command == ("a b", "c")


def test_the_fields_of_a_task_stand_in_the_command():
    settings = AgentSettings.of(command=["agent", "--ask={prompt}", "{city}/{answer}", "{}"])
    assert settings.command_of(TASK) == ["agent", "--ask=What is {1}?", "Rome/1", "{}"]
    with pytest.raises(ValueError, match="no field town, which the agent's command names"):
        AgentSettings.of(command="agent {town}").command_of(TASK)


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({}, "command: give the words that start your agent"),
        ({"command": []}, "command: give the words"),
        ({"command": "'"}, "No closing quotation"),
        ({"command": "a", "env": "A=1"}, "env is not a group"),
        ({"command": "a", "cwd": 1}, "cwd is 1; name a folder"),
        ({"command": "a", "crash_reward": "0"}, "crash_reward is '0'; use a number, or null"),
        ({"command": "a", "reward": 1}, "reward is 1; use printed, exit, posted, none, math, or FILE.py:"),
        ({"command": "a", "listen": "127.0.0.1:1"}, "listen: programs connect there that run already; leave"),
        ({"listen": 8100}, "listen 8100: expected HOST:PORT"),
        ({"listen": "0.0.0.0:8100"}, "listen=0.0.0.0:8100: only loopback may be served without a token"),
        ({"listen": "127.0.0.1:1", "reward": "exit"}, "reward is 'exit'; use posted, none, math, or FILE.py"),
    ],
)
def test_a_wrong_setting_is_named(kwargs, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        AgentSettings.of(**kwargs)


def test_a_program_is_looked_for_where_it_will_run(tmp_path):
    script = tmp_path / "agent.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    AgentSettings.of(command="./agent.sh", cwd=str(tmp_path)).check_here()
    with pytest.raises(LookupError, match=r"there is no program \./agent\.py"):
        AgentSettings.of(command="./agent.py", cwd=str(tmp_path)).check_here()
    with pytest.raises(LookupError, match="there is no such folder"):
        AgentSettings.of(command="true", cwd=str(tmp_path / "gone")).check_here()


def test_a_python_file_is_looked_for_where_it_will_run(tmp_path):
    (tmp_path / "agent.py").touch()
    for command in ("python3 -u agent.py", "python3 {city}.py", "python3 -m agent.py", "env python3 a.py"):
        AgentSettings.of(command=command, cwd=str(tmp_path)).check_here()
    with pytest.raises(LookupError, match=r"command: there is no file agnt\.py"):
        AgentSettings.of(command="python3 -u agnt.py --fast", cwd=str(tmp_path)).check_here()


@pytest.mark.parametrize(
    ("reward", "scorer"), [(name, "") for name in ("printed", "exit", "posted", "none")] + [("math", "math")]
)
def test_any_other_reward_is_the_kind_that_scores(reward, scorer):
    assert AgentSettings.of(command="a", reward=reward).scorer == scorer


def test_an_address_takes_posted_rewards_and_its_token_from_a_file(tmp_path):
    file = tmp_path / "token"
    file.write_text("secret\n")
    file.chmod(0o600)
    settings = AgentSettings.of(listen="0.0.0.0:8100", token_file=str(file))
    assert (settings.listen, settings.reward) == (("0.0.0.0", 8100), "posted")
    settings.check_here()
    assert settings.tokens().is_among("Bearer secret")
    file.write_text("")
    with pytest.raises(ConfigError, match=r"token_file=.*there is no token in it"):
        settings.check_here()
