"""Words typed for run.sh reach plan.json unchanged; no file of the caller's stands in for a library."""

import json
import subprocess

import pytest

VALUES = {
    "SEMICOLON": "x;touch hacked",
    "SUBSTITUTION": "$(touch hacked)",
    "BACKTICKS": "`touch hacked`",
    "VARIABLE": "$HOME",
    "SINGLE_QUOTE": "it's",
    "DOUBLE_QUOTES": 'say "hi"',
    "SPACES": "  a  b  ",
    "LINE_BREAK": "two\nlines",
    "UNICODE": "é 日本 🙂",
    "GLOB": "*",
    "BACKSLASH": "a\\nb\\",
    "TILDE": "~root",
    "EQUALS": "a=b",
    "DIGITS": "007",
    "NOTHING": "",
}


def test_values_arrive_as_typed_and_none_is_expanded(harness):
    typed = [f"+engine.extra_env.{name}={value}" for name, value in VALUES.items()]
    braces = "env_config.train_difficulty_max_steps={easy:5,medium:6}"
    of_environment = "run_name='a b' +engine.extra_env.X=y"

    done = harness.run(
        "--rl-phase", "update", "--max-iterations", "1", "seed=3", braces, *typed,
        HYDRA_OVERRIDES=of_environment,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    config = json.loads((harness.log / "runs" / "latest" / "plan.json").read_text())["config"]
    variables = config["engine"]["extra_env"]
    assert {name: variables[name] for name in VALUES} == VALUES
    assert config["env_config"]["train_difficulty_max_steps"] == {"easy": 5, "medium": 6, "hard": 30}
    assert (config["run_name"], config["seed"], variables["X"]) == ("a b", 3, "y")
    assert not list(harness.home.rglob("hacked"))


def test_strange_paths_work_from_any_folder(harness, tmp_path):
    home = tmp_path / 'it\'s a "home" $(touch hacked); é*'
    (home / "data").mkdir(parents=True)
    words = ["bash", harness.argv()[1], "--data-path", "data", "--log-path", "my log", "--rl-phase", "update",
             "--max-iterations", "1", f"model_config.base_model={harness.home / 'model'}"]  # fmt: skip

    done = subprocess.run(words, env=harness.env(), cwd=home, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    plan = json.loads((home / "my log" / "runs" / "latest" / "plan.json").read_text())
    assert plan["config"]["log_path"] == str(home / "my log")
    assert (home / "my log" / "model.pt").resolve().name == "version-000001"
    assert not list(tmp_path.rglob("hacked"))


SHADOWS = ("json", "types", "pkgutil", "collections", "inspect", "pydantic", "hydra", "msgspec", "rl_agent")
GAME = """
import json
from rl_agent.types import Observation, StepResult

class Game:
    async def reset(self, task, seed):
        return Observation(json.dumps("begin"))
    async def step(self, action):
        return StepResult(Observation(""), done=True)
    async def close(self):
        pass
"""


@pytest.fixture
def folder(tmp_path):
    """A folder whose files are named as libraries are; importing one leaves a file."""
    caller_folder = tmp_path / "caller"
    caller_folder.mkdir()
    for name in SHADOWS:
        code = f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})\nraise ImportError({name!r})\n"
        (caller_folder / f"{name}.py").write_text(code)
    return caller_folder


BOTH = ("--rl-phase", "both", "--eval-interval", "1", "--max-iterations", "1")


def call(harness, folder, *words):
    """Call run.sh in the folder; nothing there may be imported that was not named."""
    done = subprocess.run(
        harness.argv(*words), cwd=folder, env=harness.env(), capture_output=True, text=True, timeout=100
    )
    imported = harness.home / "imported"
    assert not imported.exists(), imported.read_text()
    assert done.returncode == 0, done.stderr


def test_a_file_of_the_callers_folder_stands_in_for_no_library(harness, folder):
    call(harness, folder, *BOTH)


def test_a_class_of_the_callers_folder_is_found_beside_such_files(harness, folder):
    (folder / "own_game.py").write_text(GAME)
    call(harness, folder, *BOTH, "--dry-run", "+env_config.kinds.math=own_game:Game")
