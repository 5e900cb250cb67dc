"""The settings of an agent's program."""

import re

import pytest

from rl_agent.env.agent.settings import AgentSettings
from rl_agent.env.values import settings_from
from rl_agent.errors import ConfigError
from rl_agent.types import Task

TASK = Task("t", "What is {1}?", "agent", "easy", answer="1", extra={"city": "Rome"})


def settings(**kwargs):
    return settings_from(AgentSettings, kwargs)


def test_a_command_may_be_a_text_or_a_list():
    text = settings(command="python 'my agent.py' --fast")
    assert text.command == ("python", "my agent.py", "--fast")
    assert settings(command=["a b", "c"]).command == ("a b", "c")


def test_the_fields_of_a_task_stand_in_the_command():
    agent = settings(command=["agent", "--ask={prompt}", "{city}/{answer}", "{}"])
    assert agent.command_of(TASK) == ["agent", "--ask=What is {1}?", "Rome/1", "{}"]
    with pytest.raises(ValueError, match="no field town, which the agent's command names"):
        settings(command="agent {town}").command_of(TASK)


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({}, "give command, the words that start your agent"),
        ({"command": []}, "give command, the words"),
        ({"command": "'"}, "No closing quotation"),
        ({"command": "a", "env": "A=1"}, "env='A=1': expected a valid dictionary"),
        ({"command": "a", "listen": "127.0.0.1:1"}, "or listen, the address for one that runs already"),
        ({"command": "a", "colour": 1}, "colour: there is no such setting"),
        ({"listen": 8100}, "the address 8100: expected HOST:PORT"),
        ({"listen": "0.0.0.0:8100"}, "listen: only loopback may be served without a token"),
        ({"listen": "127.0.0.1:1", "reward": "exit"}, "reward=exit: use posted, none, math, or FILE.py"),
    ],
)
def test_a_wrong_setting_is_named(kwargs, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        settings(**kwargs)


def test_a_program_is_looked_for_where_it_will_run(tmp_path):
    script = tmp_path / "agent.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    settings(command="./agent.sh", cwd=str(tmp_path)).check_here()
    with pytest.raises(LookupError, match=r"there is no program \./agent\.py"):
        settings(command="./agent.py", cwd=str(tmp_path)).check_here()
    with pytest.raises(LookupError, match="there is no such folder"):
        settings(command="true", cwd=str(tmp_path / "gone")).check_here()


def test_a_python_file_is_looked_for_where_it_will_run(tmp_path):
    (tmp_path / "agent.py").touch()
    for command in ("python3 -u agent.py", "python3 {city}.py", "python3 -m agent.py", "env python3 a.py"):
        settings(command=command, cwd=str(tmp_path)).check_here()
    with pytest.raises(LookupError, match=r"command: there is no file agnt\.py"):
        settings(command="python3 -u agnt.py --fast", cwd=str(tmp_path)).check_here()


@pytest.mark.parametrize(
    ("reward", "scorer"), [(name, "") for name in ("printed", "exit", "posted", "none")] + [("math", "math")]
)
def test_any_other_reward_is_the_kind_that_scores(reward, scorer):
    assert settings(command="a", reward=reward).scorer == scorer


def test_an_address_takes_posted_rewards_and_its_token_from_a_file(tmp_path):
    file = tmp_path / "token"
    file.write_text("secret\n")
    file.chmod(0o600)
    agent = settings(listen="0.0.0.0:8100", token_file=str(file))
    assert (agent.listen, agent.reward) == (("0.0.0.0", 8100), "posted")
    agent.check_here()
    assert agent.tokens().is_among("Bearer secret")
    file.write_text("")
    with pytest.raises(ConfigError, match=r"token_file=.*there is no token in it"):
        agent.check_here()
