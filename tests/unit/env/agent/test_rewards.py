"""Rewards that programs print, and ends that they post."""

import json
import re

import pytest

from rl_agent.env.agent.program import ProgramEnd
from rl_agent.env.agent.rewards import printed, read_end
from rl_agent.errors import EnvironmentRefusal
from rl_agent.types import Observation, StepResult


def test_the_last_line_printed_is_a_number_or_named_ones():
    assert printed(ProgramEnd(0, "thinking\n0.5\n", "")) == {"": 0.5}
    assert printed(ProgramEnd(0, '{"right": 1}\n', "")) == {"right": 1.0}
    for line in ("bye", '"1"', "NaN", "[1]", "[" * 100_000):
        with pytest.raises(EnvironmentRefusal, match="its last line is"):
            printed(ProgramEnd(0, line, ""))


@pytest.mark.parametrize(
    ("source", "end", "result"),
    [
        ("posted", {"reward": 0.5}, StepResult(Observation(""), 0.5, done=True)),
        (
            "posted",
            {"reward": {"right": 1, "short": 0.5}, "completion": "4"},
            StepResult(Observation("4"), 0.0, done=True, rewards={"right": 1.0, "short": 0.5}),
        ),
        ("math", {"completion": "4"}, StepResult(Observation("4"), 0.0, done=True)),
        ("none", {}, StepResult(Observation(""), 0.0, done=True)),
    ],
)
def test_an_end_has_the_reward_or_what_is_scored(source, end, result):
    assert read_end(source, json.dumps(end).encode()) == result


@pytest.mark.parametrize(
    ("source", "body", "reason"),
    [
        ("posted", b"[]", "body: expected an object"),
        ("posted", b"{}", "reward: expected a number or an object of numbers"),
        ("posted", b'{"reward": {}}', "reward: expected a number or an object of numbers"),
        ("posted", b'{"reward": {"right": null}}', "reward: expected a number or an object of numbers"),
        ("posted", b'{"rewards": 1}', "rewards: an end has reward and completion at most"),
        ("math", b"{}", "completion: math scores it; give the answer as a text"),
        ("math", b'{"completion": 4}', "completion: expected a text"),
        ("math", b'{"reward": 1, "completion": "4"}', "reward: this run's is math; set env_config.kwargs"),
        ("exit", b"{}", "reward: this run's is exit; set env_config.kwargs.agent.reward=posted"),
    ],
)
def test_a_wrong_end_names_its_field(source, body, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        read_end(source, body)
