"""Records of wandb are online, offline or off: the first setting that says so decides."""

import pytest

from rl_agent.monitor.wandb_mode import wandb_mode
from rl_agent.plan.compose import compose_config
from rl_agent.plan.environment import shared_environment

NETRC = "machine api.wandb.ai login user password k\n"
CASES = {
    "nothing": ({}, {}, "", ("offline", None)),
    "a key": ({}, {"WANDB_API_KEY": "k"}, "", ("online", "k")),
    "the key that the configuration names": (
        {"wandb_key_env_var": "MY_KEY"}, {"MY_KEY": "mine", "WANDB_API_KEY": "k"}, "", ("online", "mine"),
    ),
    "a login": ({}, {}, NETRC, ("online", None)),
    "a login elsewhere": ({}, {}, "machine example.org login user password k\n", ("offline", None)),
    "the user's variable": ({}, {"WANDB_MODE": "disabled", "WANDB_API_KEY": "k"}, NETRC, ("disabled", "k")),
    "the configuration": ({"mode": "offline"}, {"WANDB_MODE": "online"}, NETRC, ("offline", None)),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "environ", "netrc", "expected"), CASES.values(), ids=CASES)
def test_configuration_then_variable_then_key_then_login_then_offline(
    tmp_path, changes, environ, netrc, expected
):
    config = compose_config([], data_path=tmp_path, log_path=tmp_path, num_gpus=0).config.wandb
    if netrc:
        (tmp_path / ".netrc").write_text(netrc)
    mode = wandb_mode(config.model_copy(update=changes), {"HOME": str(tmp_path), **environ})
    assert (mode.mode, mode.key) == expected
    assert mode.lacks_key == (mode.mode == "offline" and not changes)
    assert mode.variables == {"WANDB_MODE": mode.mode} | ({"WANDB_API_KEY": mode.key} if mode.key else {})


def test_without_wandb_nothing_is_recorded_and_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("rl_agent.monitor.wandb_mode.find_spec", lambda name: None)
    config = compose_config([], data_path=tmp_path, log_path=tmp_path, num_gpus=0).config
    mode = wandb_mode(config.wandb, {"HOME": str(tmp_path), "WANDB_API_KEY": "k"})
    assert mode.mode == "disabled"
    assert shared_environment(config, {"HOME": str(tmp_path)}).notes[-1] == mode.reason
    assert "pip install 'rl-agent[wandb]'" in mode.reason
