"""Values that pass as JSON come back as they were, through a task file and through a trajectory line."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.rollout.trajectories.line import TRAJECTORY, to_line
from rl_agent.system.json_values import MAX_DEPTH, problem_of
from tests.unit.rollout.trajectories_made import make_trajectory


def nested(depth: int) -> object:
    value: object = 1
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


def test_a_value_as_deep_as_may_be_passes_and_one_deeper_is_named():
    assert problem_of(nested(MAX_DEPTH), "v") == ""
    assert problem_of(nested(MAX_DEPTH + 1), "v").startswith("v.k[0].k[0].k[0]")
    assert "nested deeper than 64 levels" in problem_of(nested(100_000), "v")
    assert len(problem_of(nested(100_000), "v")) < 250


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("inf"), "v: inf is not JSON"),
        ([0, float("nan")], r"v[1]: nan is not JSON"),
        (-(2**63) - 1, "v: the integer has more than 64 bits"),
        ({"a": b"x"}, "v.a: a bytes is not JSON"),
        ({"a": {1, 2}}, "v.a: a set is not JSON"),
        ({None: 1}, "v: the key None is a NoneType; use a string"),
        ({"\ud800": 1}, "v: the key '\\ud800' holds half of a surrogate pair"),
        ({"\ud800": [float("inf")]}, "v: the key '\\ud800' holds half"),
    ],
)
def test_values_that_json_cannot_carry_are_named_by_their_place(value, problem):
    complaint = problem_of(value, "v")
    assert complaint.startswith(problem)
    complaint.encode()


TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT
VALUES = st.recursive(
    PLAIN | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)


@given(value=VALUES)
def test_accepted_values_are_read_from_a_line_unchanged(value):
    assert problem_of(value, "v") == ""
    episode = dataclasses.replace(make_trajectory(0), reward_detail={"v": value})
    line = to_line(episode)
    assert TRAJECTORY.validate_json(line) == episode
    assert json.loads(line)["reward_detail"] == {"v": value}
