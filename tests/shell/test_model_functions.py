"""Shell functions that a person may call: how far a training came."""

import subprocess

import pytest

from rl_agent.paths import PROJECT_ROOT


def call(*words):
    script = f'source "{PROJECT_ROOT}/scripts/shell_functions/common_utils.sh"; "$@"'
    done = subprocess.run(
        ["bash", "-euc", script, "bash", *map(str, words)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("made", "found"), [((), ""), ((9,), "checkpoint-9"), ((9, 100, 20), "checkpoint-100")]
)
def test_the_last_checkpoint_is_the_one_of_the_most_steps(tmp_path, made, found):
    for steps in made:
        (tmp_path / f"checkpoint-{steps}").mkdir()
    assert call("find_last_checkpoint", tmp_path) == (str(tmp_path / found) if found else "")
