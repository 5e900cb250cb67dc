"""Caches and variables of a run."""

import os

import pytest

from rl_agent.monitor.wandb_mode import wandb_mode
from rl_agent.plan.compose import compose_config
from rl_agent.plan.environment import shared_environment


def config(tmp_path):
    return compose_config([], data_path=tmp_path / "data", log_path=tmp_path / "log", num_gpus=0).config


def variables_of(tmp_path, **environ):
    return shared_environment(config(tmp_path), {"HOME": str(tmp_path)} | environ).variables


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def test_files_of_libraries_go_under_the_log_path(data, tmp_path):
    variables = variables_of(tmp_path)
    assert variables["HF_DATASETS_CACHE"].startswith(str(tmp_path / "log"))
    assert variables["HF_HOME"] == str(data / ".cache" / "huggingface")


def test_a_login_in_the_default_place_is_still_found(data, tmp_path):
    login = tmp_path / ".cache" / "huggingface" / "token"
    login.parent.mkdir(parents=True)
    login.touch()
    assert variables_of(tmp_path)["HF_TOKEN_PATH"] == str(login)


def test_the_recorder_takes_the_mode_that_the_plan_announced(data, tmp_path):
    environ = {"HOME": str(tmp_path)}
    announced = shared_environment(config(tmp_path), environ).variables
    assert wandb_mode(config(tmp_path).wandb, environ | announced).mode == announced["WANDB_MODE"]


MODES = {
    "no key": ({}, "offline"),
    "key": ({"WANDB_API_KEY": "k"}, "online"),
    "the user's mode": ({"WANDB_MODE": "disabled", "WANDB_API_KEY": "k"}, "disabled"),
}


@pytest.mark.parametrize(("environ", "mode"), MODES.values(), ids=MODES)
def test_wandb_records_online_with_a_key_and_offline_without(data, tmp_path, environ, mode):
    shared = shared_environment(config(tmp_path), {"HOME": str(tmp_path), **environ})
    assert shared.variables["WANDB_MODE"] == mode
    assert any("offline" in note for note in shared.notes) == (not environ)


def test_a_relative_folder_of_the_user_means_the_same_in_every_process(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    variables = variables_of(tmp_path, HF_HOME="my/hub", HOME=os.devnull)
    assert variables["HF_HOME"] == str(tmp_path / "my" / "hub")


def test_nothing_the_user_set_is_replaced(data, tmp_path):
    theirs = {"HF_HOME": "/x", "HF_DATASETS_CACHE": "/y", "TOKENIZERS_PARALLELISM": "true"}
    assert not variables_of(tmp_path, **theirs, HOME=os.devnull).keys() & theirs
