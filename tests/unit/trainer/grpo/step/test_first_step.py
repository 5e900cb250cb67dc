"""The first step on the engine's own samples compares its log-probabilities with the trainer's."""

import pytest

from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.data.samples import Group, TrainingSample, Versions
from rl_agent.trainer.grpo.step.first_step import compare_with_engine, is_on_policy


def numbers(difference: float) -> dict[str, float]:
    return {"logprob_difference": difference, "response_tokens": 1234.0}


@pytest.mark.parametrize(("difference", "is_half"), [(1e-5, False), (0.02, True), (0.09, True)])
def test_an_engine_within_the_noise_of_its_precision_is_accepted(difference, is_half):
    assert compare_with_engine(numbers(difference), 0, is_half=is_half) == ""


def test_an_engine_of_another_model_is_refused_in_fp32():
    with pytest.raises(ConfigError, match=r"differ from the trainer's by 0\.56 per token .* 1,234 tokens"):
        compare_with_engine(numbers(0.56), 0, is_half=False)


def test_an_engine_of_another_model_is_named_in_half_precision():
    assert "compute different models" in compare_with_engine(numbers(0.56), 0, is_half=True)


def of_version(version: int) -> list[Group]:
    sample = TrainingSample("task-1:0:0", (), 1.0, Versions(version, version))
    return [Group("1/task-1:0", (sample,))]


def test_only_groups_of_the_very_version_are_on_policy():
    assert is_on_policy(of_version(3), 3)
    assert not is_on_policy([*of_version(3), *of_version(2)], 3)
