"""Versions: which are kept, what a rollback serves, and what a user put at `model.pt`."""

import json
import os

import pytest

from rl_agent.engine.model import resolve_model
from rl_agent.errors import ConfigError
from rl_agent.update.model import versions
from rl_agent.update.model.versions import read_record, rollback
from rl_agent.update.publish import publish
from tests.unit.safetensors_files import value_of, write_model
from tests.unit.update.trainings import finish_training, kept, publish_iteration, served_value


def test_old_versions_are_pruned_the_served_and_the_one_before_are_kept(plan):
    for iteration in range(1, 5):
        publish_iteration(plan, iteration)
    assert kept(plan) == ["version-000003", "version-000004"]
    assert not list(plan.paths.checkpoints.glob("training-*/*"))  # nothing but weights in these


def test_rollback_serves_the_version_before_and_the_next_publish_has_a_new_number(plan):
    for iteration in (1, 2):
        publish_iteration(plan, iteration)

    assert rollback(plan.paths) == plan.paths.version_dir(1)
    assert resolve_model(plan.config).weight_version == 1
    assert served_value(plan) == 0.125

    assert publish_iteration(plan, 3).weight_version == 3
    assert read_record(plan.paths.version_dir(3)).previous == "version-000001"
    assert kept(plan) == ["version-000001", "version-000003"]  # 2 was taken back
    assert rollback(plan.paths) == plan.paths.version_dir(1)


def test_rollback_of_the_first_version_serves_the_base_model(plan):
    publish_iteration(plan, 1)
    assert rollback(plan.paths) is None
    assert resolve_model(plan.config).path == plan.config.model.base_model
    assert publish_iteration(plan, 2).weight_version == 2
    with pytest.raises(ConfigError, match="nothing was published"):
        rollback(plan.paths)
        rollback(plan.paths)


def test_rollback_to_a_pruned_version_says_which_setting_keeps_more(plan):
    for iteration in (1, 2, 3):
        publish_iteration(plan, iteration)
    rollback(plan.paths)
    with pytest.raises(ConfigError, match=r"version-000001: is no longer kept; raise trainer\.keep_versions"):
        rollback(plan.paths)


def test_the_base_of_a_kept_adapter_is_kept(plan):
    for iteration in (1, 2, 3):
        finish_training(plan, iteration)
        publish(plan, iteration, os.environ, now=1.0)
        settings = {"base_model_name_or_path": str(plan.paths.version_dir(1))}
        (plan.paths.version_dir(iteration) / "trainer" / "adapter_config.json").write_text(
            json.dumps(settings)
        )
    publish_iteration(plan, 4)
    assert kept(plan) == ["version-000001", "version-000003", "version-000004"]


def test_a_folder_that_a_user_put_at_model_pt_is_version_zero(plan):
    write_model(plan.paths.model_link, value=0.875)
    assert resolve_model(plan.config).weight_version == 0
    assert served_value(plan) == 0.875

    assert publish_iteration(plan, 1).weight_version == 1
    assert plan.paths.model_link.is_symlink()
    assert served_value(plan) == 0.125
    assert rollback(plan.paths) == plan.paths.version_dir(0)
    assert resolve_model(plan.config).weight_version == 0
    assert served_value(plan) == 0.875


def test_a_link_that_a_user_put_at_model_pt_is_version_zero(plan, tmp_path):
    outside = write_model(tmp_path / "outside", value=0.875)
    plan.paths.model_link.symlink_to(outside)
    publish_iteration(plan, 1)
    rollback(plan.paths)
    assert served_value(plan) == 0.875
    publish_iteration(plan, 2)
    publish_iteration(plan, 3)
    assert kept(plan) == ["version-000002", "version-000003"]
    assert value_of(outside) == 0.875


def test_a_file_system_that_cannot_swap_says_what_to_do(plan, monkeypatch):
    write_model(plan.paths.model_link, value=0.875)

    def cannot(one, other):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(versions, "swap", cannot)
    finish_training(plan, 1)
    with pytest.raises(ConfigError, match=r"move the folder elsewhere and make model\.pt a link"):
        publish(plan, 1, os.environ, now=1.0)
    assert served_value(plan) == 0.875
