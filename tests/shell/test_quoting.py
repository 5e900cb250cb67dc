"""Words typed for run.sh reach plan.json unchanged; no file of the caller's stands in for a library."""

import json
import shutil
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
    """A strangely named folder whose files are named as libraries are; importing one leaves a file."""
    caller_folder = tmp_path / 'it\'s a "home" $(touch hacked); é*'
    caller_folder.mkdir()
    for name in SHADOWS:
        code = f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})\nraise ImportError({name!r})\n"
        (caller_folder / f"{name}.py").write_text(code)
    return caller_folder


BOTH = ("--rl-phase", "both", "--eval-interval", "1", "--max-iterations", "1")


def call(harness, folder, *words, **variables):
    """Call run.sh in the folder; nothing there may be imported that was not named."""
    done = subprocess.run(
        ["bash", harness.argv()[1], "--data-path", "data", "--log-path", "my log", *BOTH, *words,
         f"model_config.base_model={harness.home / 'model'}", "page.port=off", f"engine.port={harness.port}"],
        cwd=folder, env=harness.env(**variables), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    imported = harness.home / "imported"
    assert not imported.exists(), imported.read_text()
    assert done.returncode == 0, done.stderr


def test_words_arrive_as_typed_in_a_folder_with_files_named_as_libraries(harness, folder):
    shutil.copytree(harness.data, folder / "data")
    typed = [f"+engine.extra_env.{name}={value}" for name, value in VALUES.items()]
    braces = "env_config.train_difficulty_max_steps={easy:5,medium:6}"
    of_environment = "run_name='a b' +engine.extra_env.X=y"

    call(harness, folder, "seed=3", braces, *typed, HYDRA_OVERRIDES=of_environment)

    log = folder / "my log"
    config = json.loads((log / "runs" / "latest" / "plan.json").read_text())["config"]
    variables = config["engine"]["extra_env"]
    assert {name: variables[name] for name in VALUES} == VALUES
    assert config["env_config"]["train_difficulty_max_steps"] == {"easy": 5, "medium": 6, "hard": 30}
    assert (config["run_name"], config["seed"], variables["X"]) == ("a b", 3, "y")
    assert config["log_path"] == str(log)
    assert (log / "model.pt").resolve().name == "version-000001"
    assert not list(harness.home.rglob("hacked"))


def test_a_class_of_the_callers_folder_is_found_beside_such_files(harness, folder):
    shutil.copytree(harness.data, folder / "data")
    (folder / "own_game.py").write_text(GAME)
    call(harness, folder, "--dry-run", "+env_config.kinds.math=own_game:Game")
