"""Caches and variables of a run."""

import os

import pytest

from rl_agent.plan import environment
from rl_agent.plan.compose import compose_config
from rl_agent.plan.environment import hub_cache, hub_home, shared_environment


def config(tmp_path):
    return compose_config([], data_path=tmp_path / "data", log_path=tmp_path / "log", num_gpus=0).config


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def test_the_hub_cache_lies_below_the_data_path(data):
    assert hub_cache(data, {"HOME": "/h"}) == data / ".cache" / "huggingface" / "hub"


def test_the_users_cache_wins(data):
    assert hub_cache(data, {"HF_HOME": "/x"}).as_posix() == "/x/hub"
    assert hub_cache(data, {"HF_HUB_CACHE": "/y", "HF_HOME": "/x"}).as_posix() == "/y"


def test_a_read_only_data_path_is_used_only_if_it_holds_a_cache(data, monkeypatch):
    monkeypatch.setattr(environment.os, "access", lambda *_: False)
    assert hub_home(data, {}) is None
    assert hub_cache(data, {"HOME": "/h"}).as_posix() == "/h/.cache/huggingface/hub"
    (data / ".cache" / "huggingface" / "hub").mkdir(parents=True)
    assert hub_home(data, {}) == data / ".cache" / "huggingface"


def test_what_libraries_write_goes_under_the_log_path(data, tmp_path):
    found = shared_environment(config(tmp_path), {"HOME": str(tmp_path)}).variables
    assert found["HF_DATASETS_CACHE"].startswith(str(tmp_path / "log"))
    assert found["HF_HOME"] == str(data / ".cache" / "huggingface")


def test_a_login_in_the_default_place_is_still_found(data, tmp_path):
    login = tmp_path / ".cache" / "huggingface" / "token"
    login.parent.mkdir(parents=True)
    login.touch()
    found = shared_environment(config(tmp_path), {"HOME": str(tmp_path)}).variables
    assert found["HF_TOKEN_PATH"] == str(login)


MODES = {
    "no key": ({}, "offline"),
    "key": ({"WANDB_API_KEY": "k"}, "online"),
    "the user's mode": ({"WANDB_MODE": "disabled", "WANDB_API_KEY": "k"}, "disabled"),
}


@pytest.mark.parametrize("name", MODES)
def test_wandb_records_online_with_a_key_and_offline_without(data, tmp_path, name):
    environ, mode = MODES[name]
    found = shared_environment(config(tmp_path), {"HOME": str(tmp_path), **environ})
    assert found.variables["WANDB_MODE"] == mode
    assert any("offline" in note for note in found.notes) == (name == "no key")


def test_nothing_the_user_set_is_replaced(data, tmp_path):
    theirs = {"HF_HOME": "/x", "HF_DATASETS_CACHE": "/y", "TOKENIZERS_PARALLELISM": "true"}
    found = shared_environment(config(tmp_path), {**theirs, "HOME": os.devnull}).variables
    assert not set(found) & set(theirs)
