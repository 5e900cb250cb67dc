"""docs/how-to/come-from-webgym-or-polyrl.md: WebGym's commands one after the other, an iteration each.

A small model takes the place of Qwen3-VL, and a stand-in that of the judge. It has no tokens for thoughts,
so `model_type` is the other one.
"""

import pytest

from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.integration.docs.agents.judge import judging
from tests.integration.docs.reader import Reader

PAGE = "docs/how-to/come-from-webgym-or-polyrl.md"


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_webgyms_commands_collect_train_and_judge_one_after_the_other(tmp_path, small):
    with judging(lambda _: ("FAIL", "it is not")) as (url, requests):
        instead = {
            " env_config.train_tasks_rollout_size=100": "",
            "--data-path": f"{small.run()} --data-path",
            "--rl-phase both": "--rl-phase both --max-iterations 1",
            "--rollout-split train-only": "--rollout-split train-only --max-iterations 1",
            "=qwen3-think": "=qwen3-instruct",
            "=gpt-4o": f"=gpt-4o openai_config.base_url={url}",
        }
        reader = Reader(PAGE, tmp_path, instead)
        reader.environment["OPENAI_API_KEY"] = "a key"
        small.give_tasks(reader)
        paths = RunPaths(reader.home / "exp1")

        both, rollout, update, judged = reader.commands("bash scripts/run.sh")
        reader.types(both, timeout_s=600)
        assert paths.model_link.resolve().name == "version-000001"
        num_gpus, model = reader.types(reader.block("source scripts/shell_functions")).splitlines()
        assert num_gpus == "0" and model == str(paths.model_link.resolve())
        reader.types(rollout, timeout_s=600)
        reader.types(update, timeout_s=600)
        assert paths.model_link.resolve().name == "version-000002"
        assert not requests
        reader.types(judged, timeout_s=600)
    episodes = list(read_iteration(paths, "train", 3, TRAJECTORY))
    assert len(episodes) == 12
    assert {episode.reward for episode in episodes} == {0.0} and requests
