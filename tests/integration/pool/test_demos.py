"""The demonstrations that the documentation names show what they say, and end well only if they did."""

import os
import re
import subprocess

import pytest

from rl_agent.paths import PROJECT_ROOT

EXAMPLES = PROJECT_ROOT / "scripts" / "examples"

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1500)]


def shown(name: str, *words: str) -> str:
    done = subprocess.run(
        ["bash", str(EXAMPLES / name), *words],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=1400,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("how", [(), ("--notice",)], ids=["killed", "told to leave"])
def test_a_preempted_engine_leaves_its_tokens_to_the_others(tmp_path, how):
    printed = shown("demo_preemption.sh", "--requests", "64", "--out", str(tmp_path), *how)
    assert "64 of 64, 0 lost, 0 twice" in printed
    if how:  # what it could end in time did not have to move
        assert re.search(r"; 0 of \d+ tokens were sampled again", printed)
    else:
        assert " 0 moved with their tokens" not in printed


def test_pool_grows_with_rollouts_replaces_killed_workers_and_shrinks(tmp_path):
    printed = shown("demo_autoscale.sh", "--simulated", "--out", str(tmp_path))
    assert "216 of 216, 0 lost, 0 twice" in printed
    assert "most engines 3 of 3; all machines ended: True" in printed
    assert (tmp_path / "engines.svg").is_file()
