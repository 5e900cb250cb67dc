"""The helper functions that scripts of users call work in a shell that only sources them."""

import os
import subprocess

import pytest

from rl_agent.paths import PROJECT_ROOT
from tests.support.rollout_setup import make_plan


def call(words: str, **environ: str) -> str:
    script = f'source "{PROJECT_ROOT}/scripts/shell_functions/common_utils.sh"; {words}'
    done = subprocess.run(
        ["bash", "-euc", script], capture_output=True, text=True, timeout=60, env=os.environ | environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_gpus_are_counted():
    assert call("detect_num_gpus", CUDA_VISIBLE_DEVICES="0,3,5") == "3"


@pytest.mark.parametrize(
    ("step_numbers", "last"), [((), ""), ((9,), "checkpoint-9"), ((9, 100, 20), "checkpoint-100")]
)
def test_the_last_checkpoint_is_the_one_of_the_most_steps(tmp_path, step_numbers, last):
    for steps in step_numbers:
        (tmp_path / f"checkpoint-{steps}").mkdir()
    assert call(f"find_last_checkpoint '{tmp_path}'") == (str(tmp_path / last) if last else "")


def test_the_model_to_serve_is_named(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    plan = make_plan(tmp_path, engine_url="http://127.0.0.1:1", model=model)
    plan.write(tmp_path / "plan.json")
    output = call("resolve_model_to_serve; declare -A m; resolve_model_to_serve m; echo ${m[weight_version]}",
                 PLAN_FILE=str(tmp_path / "plan.json"))  # fmt: skip
    assert output.splitlines() == [str(model), "0"]


def test_a_helper_that_fails_says_so():
    common = PROJECT_ROOT / "scripts" / "shell_functions" / "common_utils.sh"
    script = f'source "{common}"; PLAN_FILE=/nowhere resolve_model_to_serve'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 78 and "--plan /nowhere cannot be read" in done.stderr
