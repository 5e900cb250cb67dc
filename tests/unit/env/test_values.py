"""Values of an environment are checked before they are shown to a model or written down."""

import importlib

import numpy
import pytest

from rl_agent.env.values import checked_observation, checked_result, described
from rl_agent.errors import EnvironmentFailure, EnvironmentRefusal
from rl_agent.types import MAX_MESSAGE, Observation, StepResult


def test_a_librarys_numbers_and_flags_become_plain_ones():
    result = checked_result(StepResult(Observation("a"), numpy.float32(0.5), done=numpy.bool_(True)))
    assert (result.reward, type(result.reward), result.done, result.truncated) == (0.5, float, True, False)


def test_named_rewards_become_plain_numbers():
    result = checked_result(StepResult(Observation("a"), rewards={"format": numpy.float32(0.5)}))
    assert (result.rewards, type(result.rewards["format"])) == ({"format": 0.5}, float)
    with pytest.raises(EnvironmentFailure, match="reward"):
        checked_result(StepResult(Observation("a"), rewards={"format": float("nan")}))


@pytest.mark.parametrize("names", [["a/b"], [""], [3], ["x" * 61], [f"n{n}" for n in range(21)]])
def test_names_of_rewards_that_cannot_be_metrics_are_refused(names):
    with pytest.raises(EnvironmentRefusal, match="at most 20 names of letters"):
        checked_result(StepResult(Observation("a"), rewards=dict.fromkeys(names, 1.0)))


@pytest.mark.parametrize("result", [None, "text", Observation("a"), StepResult("text")])
def test_another_type_is_a_bug_that_every_attempt_meets(result):
    with pytest.raises(EnvironmentRefusal, match=r"not an? (StepResult|Observation)"):
        checked_result(result)


@pytest.mark.parametrize("reward", ["much", None, float("nan"), float("-inf"), 1e308])
def test_a_reward_that_is_no_number_to_learn_from_is_a_failure(reward):
    with pytest.raises(EnvironmentFailure, match="reward"):
        checked_result(StepResult(Observation("a"), reward))


@pytest.mark.parametrize(
    "observation", [Observation("\ud800"), Observation(3), Observation("a", ("\udcff",))]
)
def test_unwritable_values_are_a_failure_named_by_their_call(observation):
    with pytest.raises(EnvironmentFailure, match="reset returned an observation"):
        checked_observation(observation, "reset")


def test_a_recorded_error_is_short_and_can_be_written():
    assert described(KeyError()) == "KeyError"
    long = described(ValueError("\ud800" + "x" * 10**6))
    assert long.startswith("ValueError: ") and len(long.encode()) < MAX_MESSAGE + 100


def test_an_exception_is_named_after_the_innermost_line_of_the_users_code(tmp_path, monkeypatch):
    code = "import json\n\ndef step(text):\n    return inner(text)\n\ndef inner(text):\n"
    (tmp_path / "bad_env_of_a_user.py").write_text(f"{code}    return json.loads(text)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError) as error:
        importlib.import_module("bad_env_of_a_user").step("{")
    assert described(error.value).startswith("bad_env_of_a_user.py:7: JSONDecodeError: ")


def test_an_exception_of_this_package_alone_names_no_line():
    with pytest.raises(EnvironmentFailure) as error:
        checked_result(StepResult(Observation("x"), reward=float("nan")))
    error.value.__traceback__ = error.value.__traceback__.tb_next
    assert described(error.value).startswith("EnvironmentFailure: step returned")
