"""Versions: which are kept, what a rollback serves, a user's own link at `model.pt`, and a lost link."""

import json
import os
import shutil
from functools import partial

import pytest

from rl_agent.engine.model import resolve_model
from rl_agent.errors import ConfigError
from rl_agent.served_model import versions
from rl_agent.served_model.versions import read_record, rollback
from rl_agent.trainer.llamafactory.publish import publish
from tests.unit.safetensors_files import value_of, write_model
from tests.unit.trainer.llamafactory.trainings import finish_training, kept, publish_iteration, served_value


def publish_iterations(plan, *iterations):
    for iteration in iterations:
        publish_iteration(plan, iteration)


def test_old_versions_are_pruned_the_served_and_the_one_before_are_kept(plan):
    publish_iterations(plan, 1, 2, 3, 4)
    assert kept(plan) == ["version-000003", "version-000004"]
    assert not list(plan.paths.checkpoints.glob("training-*/*"))  # nothing but weights in these


def test_rollback_serves_the_version_before_and_numbers_go_on(plan):
    publish_iterations(plan, 1, 2)

    assert rollback(plan.paths) == plan.paths.version_dir(1)
    assert resolve_model(plan.config).weight_version == 1
    assert served_value(plan) == 0.125

    assert publish_iteration(plan, 3).weight_version == 3
    assert read_record(plan.paths.version_dir(3)).previous == "version-000001"
    assert kept(plan) == ["version-000001", "version-000002", "version-000003"]  # 3 does not descend from 2
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
    publish_iterations(plan, 1, 2, 3)
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


def test_a_link_that_a_user_put_at_model_pt_is_version_zero(plan, tmp_path):
    outside = write_model(tmp_path / "outside", value=0.875)
    plan.paths.model_link.symlink_to(outside)
    publish_iteration(plan, 1)
    rollback(plan.paths)
    assert served_value(plan) == 0.875
    publish_iterations(plan, 2, 3)
    assert kept(plan) == ["version-000001", "version-000002", "version-000003"]  # 2 descends from 0
    assert value_of(outside) == 0.875


def test_another_line_of_versions_is_never_deleted(plan):
    publish_iterations(plan, 1, 2)
    versions.serve_base(plan.paths)
    publish_iterations(plan, 3, 4, 5, 6)
    assert kept(plan) == ["version-000001", "version-000002", "version-000005", "version-000006"]


def test_a_version_that_was_pinned_is_deleted_once_it_is_not(plan, monkeypatch):
    with monkeypatch.context() as pinning:
        pinning.setattr(versions, "prune", partial(versions.prune, pinned=["version-000001"]))
        publish_iterations(plan, 1, 2, 3, 4)
    assert kept(plan) == ["version-000001", "version-000003", "version-000004"]
    publish_iteration(plan, 5)
    assert kept(plan) == ["version-000004", "version-000005"]


def lose(link, how):
    target = link.readlink()
    link.unlink()
    if how == "dangling":
        link.symlink_to("checkpoints/version-000009")
    elif how == "folder":  # as `cp -rL` leaves it
        shutil.copytree(link.parent / target, link)


@pytest.mark.parametrize("how", ["gone", "dangling", "folder"])
def test_without_its_link_no_model_is_taken_for_the_served_one(plan, how):
    publish_iteration(plan, 1)
    lose(plan.paths.model_link, how)
    finish_training(plan, 2)
    for act in (
        lambda: resolve_model(plan.config),
        lambda: publish(plan, 2, os.environ, now=1.0),
        lambda: rollback(plan.paths),
    ):
        with pytest.raises(ConfigError, match=r"model\.pt: .*; restore a version with `rollback --to N`"):
            act()
    assert kept(plan) == ["version-000001"]


def test_a_crash_before_the_first_switch_leaves_the_base_model_served(plan, monkeypatch):
    finish_training(plan, 1)
    monkeypatch.setattr(versions, "switch", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        publish(plan, 1, os.environ, now=1.0)
    assert kept(plan) == ["version-000001"]
    assert resolve_model(plan.config).weight_version == 0


def test_a_link_that_was_switched_by_hand_is_recorded_by_the_next_update(plan):
    publish_iterations(plan, 1, 2)
    plan.paths.model_link.unlink()
    plan.paths.model_link.symlink_to("checkpoints/version-000001")
    versions.adopt(plan.paths)
    lose(plan.paths.model_link, "gone")
    with pytest.raises(ConfigError, match="is gone, and led to version-000001"):
        resolve_model(plan.config)
