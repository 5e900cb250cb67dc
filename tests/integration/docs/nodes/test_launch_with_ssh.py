"""docs/how-to/launch-with-ssh.md without a network: an `ssh` on PATH runs its words in a shell here."""

import json
import os

import pytest

from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.integration.docs.reader import Reader

PAGE = "docs/how-to/launch-with-ssh.md"
SSH = '#!/bin/bash\n[[ $1 == -n ]]; echo "$2" >>"$HOME/hosts"; cd /; exec bash -c "${*:3}" </dev/null\n'
SIBLINGS = 2


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_all_three_machines_collect_with_the_words_of_the_first_one(tmp_path, small, vllm_server):
    steps = "'env_config.train_difficulty_max_steps={easy: 1, medium: 1, hard: 1}'"
    words = small.collect_at(vllm_server, steps, f"rollout.group_size={SIBLINGS}")
    reader = Reader(PAGE, tmp_path, {"--rl-phase both --eval-interval 6": words})
    (reader.shared / "rl-agent").symlink_to(reader.checkout)
    (reader.shared / "data").mkdir()
    for split in ("train", "test"):
        (reader.shared / "data" / f"{split}.jsonl").write_text((small.data / f"{split}.jsonl").read_text())
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(SSH)
    (programs / "ssh").chmod(0o755)
    reader.environment["PATH"] = f"{programs}{os.pathsep}{reader.environment['PATH']}"

    with reader.leaves_running(reader.block("hosts=(node-a")) as first:
        first.ends_well(600)

    assert (reader.home / "hosts").read_text().split() == ["node-b", "node-c"]
    paths = RunPaths(reader.shared / "exp1")
    keys = [str(one.key) for one in read_iteration(paths, "train", 1, TRAJECTORY)]
    assert len(keys) == len(set(keys)) == 60 * SIBLINGS
    assert len(list(paths.trajectory_dir("train").glob("*.iteration1_rank_[012]*"))) == 3
    config = json.loads((paths.log_path / "runs/latest/plan-1-rank-1.json").read_text())["config"]
    assert config["env_config"]["train_difficulty_max_steps"] == {"easy": 1, "medium": 1, "hard": 1}
