"""The verb that serves an earlier version, and puts back a link that a copy has lost."""

import pytest

from rl_agent.cli.__main__ import main
from rl_agent.engine.model import resolve_model
from rl_agent.served_model import versions
from tests.integration.tiny_model import make_plan
from tests.unit.safetensors_files import write_model
from tests.unit.trainer.llamafactory.trainings import publish_iteration


@pytest.fixture
def plan(tmp_path):
    return make_plan(tmp_path / "log", write_model(tmp_path / "base", value=0.0))


@pytest.fixture
def paths(plan):
    """The log path after two updates."""
    for iteration in (1, 2):
        publish_iteration(plan, iteration)
    return plan.paths


def roll_back(paths, *words: str) -> int:
    return main(["rollback", "--log-path", str(paths.log_path), *words])


def test_a_lost_link_is_put_back_to_the_version_that_is_named(plan, paths):
    paths.model_link.unlink()
    assert roll_back(paths, "--to", "1") == 0
    assert resolve_model(plan.config).weight_version == 1
    paths.model_link.unlink()
    assert roll_back(paths, "--to", "base") == 0
    assert resolve_model(plan.config).path == plan.config.model.base_model


def test_a_lost_link_names_the_whole_versions_and_the_one_it_led_to(paths, capsys):
    versions.switch(paths, paths.version_dir(1))
    paths.model_link.unlink()
    assert roll_back(paths) == 78
    (line,) = capsys.readouterr().err.splitlines()
    assert "led to version-000001; whole versions are 1, 2: put one back with" in line
    assert f"rollback --log-path {paths.log_path} --to 1, or serve the base model with --to base" in line


def test_a_version_that_no_engine_served_needs_no_link(plan, paths):
    paths.model_record.unlink()  # as after a crash between the first version and its link
    paths.model_link.unlink()
    assert resolve_model(plan.config).weight_version == 0


def test_a_damaged_version_is_neither_named_nor_put_back(paths, capsys):
    paths.model_link.unlink()
    (paths.version_dir(2) / "config.json").unlink()
    assert roll_back(paths, "--to", "2") == 78
    assert "--to 2: " in capsys.readouterr().err
    assert roll_back(paths) == 78
    assert "whole versions are 1: put one back" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "status"), [("3", 78), ("0", 78), ("-1", 2), ("newest", 2), ("", 2)], ids=repr
)
def test_a_version_that_is_not_there_is_refused(paths, word, status, capsys):
    assert roll_back(paths, "--to", word) == status
    assert "--to" in capsys.readouterr().err
    assert paths.model_link.resolve() == paths.version_dir(2)


def test_a_folder_in_place_of_the_link_is_to_be_moved_away(paths, capsys):
    paths.model_link.unlink()
    write_model(paths.model_link, value=0.5)
    assert roll_back(paths, "--to", "2") == 78
    assert "move it away" in capsys.readouterr().err
    assert paths.model_link.is_dir()


def test_a_users_own_model_stays_as_version_zero(plan, paths, tmp_path):
    paths.model_link.unlink()
    paths.model_link.symlink_to(write_model(tmp_path / "mine", value=0.5))
    assert roll_back(paths, "--to", "1") == 0
    assert roll_back(paths, "--to", "0") == 0
    assert paths.model_link.resolve() == tmp_path / "mine"
