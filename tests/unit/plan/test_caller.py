"""Names relative to the caller's folder still mean the same in the folder where a run works."""

import re
import sys
from pathlib import Path

import pytest

from rl_agent.config.overrides.words import parse_override
from rl_agent.config.plan import Config
from rl_agent.env.registry import EnvironmentRegistry
from rl_agent.errors import ConfigError
from rl_agent.plan.compose import compose_config
from rl_agent.trainer.llamafactory.render import deepspeed_file

GAME = """
class Game:
    async def reset(self, task, seed): ...
    async def step(self, action): ...
    async def close(self): ...
"""


@pytest.fixture
def caller(tmp_path, monkeypatch):
    """The caller stands in this folder, and Python finds no module in it by itself."""
    folder = tmp_path / "caller"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return folder


def compose(*words: str) -> Config:
    overrides = [parse_override(word, "test") for word in words]
    return compose_config(overrides, data_path=Path("/data"), log_path=Path("/log"), num_gpus=0).config


def written_and_read(config: Config) -> Config:
    return Config.model_validate_json(config.model_dump_json(by_alias=True))


def test_a_relative_deepspeed_file_is_found_from_another_folder(caller, tmp_path, monkeypatch):
    (caller / "mine.json").write_text("{}")
    config = compose("trainer.deepspeed=mine.json")
    monkeypatch.chdir(tmp_path)
    assert deepspeed_file(config.trainer.deepspeed) == caller / "mine.json"


@pytest.mark.parametrize("name", ["zero2", "no-such-file"])
def test_a_deepspeed_name_that_means_no_file_here_is_left_as_it_was_typed(caller, name):
    (caller / "zero2").write_text("the project's own zero2 is meant all the same")
    assert compose(f"trainer.deepspeed={name}").trainer.deepspeed == name


def test_a_relative_folder_for_weight_versions_is_made_absolute(caller):
    assert compose("weights.store=versions").weights.store == caller / "versions"


@pytest.mark.parametrize("key", ["token_file", "admin_token_file", "tls_ca", "journal"])
def test_files_of_the_manager_are_those_of_the_callers_folder(caller, tmp_path, monkeypatch, key):
    config = compose(f"pool.{key}=mine")
    monkeypatch.chdir(tmp_path)
    assert getattr(written_and_read(config).pool, key) == caller / "mine"


@pytest.mark.parametrize("package", [False, True], ids=["module", "package"])
def test_an_environment_in_the_callers_folder_is_found_from_another_one(
    caller, tmp_path, monkeypatch, package
):
    name = f"games_of_{caller.parent.name}"
    file = caller / name / "__init__.py" if package else caller / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(GAME)
    config = compose(f"+env_config.kinds.game={name}:Game")
    assert config.env_config.module_folders == (caller,)

    monkeypatch.chdir(tmp_path)
    EnvironmentRegistry(written_and_read(config).env_config).check(["game"])


def test_an_environment_in_a_named_folder_is_found(caller, tmp_path, monkeypatch):
    elsewhere = caller / "else where"
    elsewhere.mkdir()
    (elsewhere / f"named_{caller.parent.name}.py").write_text(GAME)
    config = compose(
        f"+env_config.kinds.game=named_{caller.parent.name}:Game", "env_config.module_folders=['else where']"
    )
    assert config.env_config.module_folders == (elsewhere,)

    monkeypatch.chdir(tmp_path)
    EnvironmentRegistry(config.env_config).check(["game"])


@pytest.mark.parametrize("word", ["env_config.default_env=", "+env_config.kinds.score="])
def test_a_file_names_a_reward_function_for_all_processes(caller, tmp_path, monkeypatch, word):
    (caller / "sub").mkdir()
    file = caller / "sub" / f"rewards_of_{caller.parent.name}.py"
    file.write_text("def score(completion): return 1.0")
    env_config = written_and_read(compose(f"{word}sub/{file.name}:score")).env_config

    monkeypatch.chdir(tmp_path)
    EnvironmentRegistry(env_config).check(["score"])
    assert env_config.module_folders == (caller / "sub",)
    assert env_config.default_env == ("score" if "default" in word else "reasoning_gym")


def test_a_reward_file_that_is_not_there_is_refused_with_its_path(caller):
    path = re.escape(str(caller / "rewards.py"))
    with pytest.raises(ConfigError, match=f"score=./rewards.py:score: there is no file {path}$"):
        compose("env_config.default_env=./rewards.py:score")


def test_a_default_function_does_not_replace_a_kind_of_its_name(caller):
    with pytest.raises(ConfigError, match=r"kinds has another math; give yours"):
        compose("env_config.default_env=rewards.py:math")


def test_a_folder_without_environments_adds_nothing_to_pythons_path(caller):
    assert compose("+env_config.kinds.game=elsewhere.games:Game").env_config.module_folders == ()


def test_an_agents_program_runs_and_is_scored_where_its_caller_stands(caller, tmp_path, monkeypatch):
    (caller / "rewards.py").write_text("def score(completion):\n    return 1.0\n")
    (caller / "my_agent.py").touch()
    command = "+env_config.kwargs.agent.command='python my_agent.py'"
    config = compose(command, "+env_config.kwargs.agent.reward=rewards.py:score")
    monkeypatch.chdir(tmp_path)
    settings = written_and_read(config).env_config.kwargs["agent"]
    assert (settings["cwd"], settings["reward"]) == (str(caller), "score")
    registry = EnvironmentRegistry(written_and_read(config).env_config)
    registry.check(["agent"])
    assert registry.scorer_of("agent") == "score"


def test_an_agents_own_folder_and_token_are_relative_to_the_callers(caller):
    words = ["+env_config.kwargs.agent.token_file=agent.token", "+env_config.kwargs.agent.cwd=work"]
    settings = compose(*words).env_config.kwargs["agent"]
    assert settings == {"cwd": str(caller / "work"), "token_file": str(caller / "agent.token")}
