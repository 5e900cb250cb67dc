"""A server's version is told from the folder or the link that it was started on."""

import os
from pathlib import Path

import pytest

from rl_agent.config.plan import Config
from rl_agent.engine.model import OLDER, published_version, resolve_model, version_of_root
from tests.integration.tiny_model import make_plan

SWITCHED_AT = 1_000_000.0


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """The configuration of a run whose third version is served, since `SWITCHED_AT`."""
    config = make_plan(tmp_path / "log", tmp_path / "base").config
    for version in (2, 3):
        config.paths.version_dir(version).mkdir(parents=True)
    switch(config, config.paths.version_dir(3))
    return config


def switch(config: Config, target: Path) -> None:
    link = config.paths.model_link
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    os.utime(link, (SWITCHED_AT, SWITCHED_AT), follow_symlinks=False)


def version_of(root: object, config: Config, started_at: float | None = None) -> int | None:
    return version_of_root(str(root), config, resolve_model(config), started_at)


@pytest.mark.parametrize("started_at", [None, SWITCHED_AT - 5, SWITCHED_AT + 5])
def test_a_version_folder_names_its_version_whenever_the_server_started(config, started_at):
    roots = [config.paths.version_dir(version) for version in (2, 3)]
    assert [version_of(root, config, started_at) for root in roots] == [2, 3]


@pytest.mark.parametrize(
    ("started_at", "version"), [(SWITCHED_AT - 5, OLDER), (SWITCHED_AT + 5, 3), (None, 3)]
)
def test_a_server_on_the_link_is_judged_by_its_start(config, started_at, version):
    assert version_of(config.paths.model_link, config, started_at) == version


def test_a_server_started_on_the_link_is_old_after_rollback_to_the_base(config):
    config.paths.model_link.unlink()
    assert resolve_model(config).weight_version == 0
    assert version_of(config.paths.model_link, config, SWITCHED_AT + 5) is None
    other = config.log_path / "mine"
    other.symlink_to(config.paths.version_dir(3))
    assert version_of(other, config, SWITCHED_AT + 5) == OLDER


@pytest.mark.parametrize(("started_at", "version"), [(SWITCHED_AT - 5, OLDER), (SWITCHED_AT + 5, 0)])
def test_a_users_model_behind_the_link_is_version_zero(config, tmp_path, started_at, version):
    outside = tmp_path / "outside"
    outside.mkdir()
    switch(config, outside)
    assert published_version(config.paths) == 0
    assert version_of(outside, config, started_at) == 0
    assert version_of(config.paths.model_link, config, started_at) == version


def test_the_base_model_is_version_zero_and_others_are_none(config, tmp_path):
    assert version_of(config.model.base_model, config) == 0
    foreign = tmp_path / "other run" / "checkpoints" / "version-000003"
    foreign.mkdir(parents=True)
    for root in ("/somewhere/else", "some/hub-name", foreign):
        assert version_of(root, config) is None
