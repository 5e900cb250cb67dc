"""Keys that people set stand above `# rarely changed`, in a file or in a section of it."""

import pytest

from rl_agent.config.common_keys import common_defaults


def test_common_keys_stand_above_the_dividing_line_of_their_section():
    trainer = common_defaults({"trainer": "grpo"})["trainer"]
    assert "clip_low" in trainer["loss"] and "dual_clip" not in trainer["loss"]
    assert "learning_rate" in trainer["optimizer"] and "beta1" not in trainer["optimizer"]
    assert list(trainer)[:2] == ["kind", "placement"] and "timeout_s" not in trainer


def test_a_section_after_the_rest_of_another_one_is_whole():
    defaults = common_defaults({})
    assert set(defaults["page"]) == {"port"} and "project" in defaults["wandb"]
    assert list(defaults)[:2] == ["data_path", "log_path"]


@pytest.mark.parametrize(("kind", "has_threshold"), [("llamafactory", True), ("grpo", False)])
def test_the_kind_of_a_section_decides_which_file_counts(kind, has_threshold):
    trainer = common_defaults({"trainer": kind})["trainer"]
    assert trainer["kind"] == kind and ("reward_threshold" in trainer) is has_threshold


def test_sections_are_named_as_the_configuration_names_them():
    defaults = common_defaults({})
    assert "base_model" in defaults["model_config"] and "default_env" in defaults["env_config"]


def test_what_a_variant_of_a_file_changes_is_not_common_for_it():
    assert "use_cpu" not in common_defaults({"trainer": "llamafactory"})["trainer"]
