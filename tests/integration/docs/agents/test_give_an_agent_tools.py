"""docs/how-to/give-an-agent-tools.md, typed as it stands, but at a free port."""

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.integration.docs.reader import Reader

PAGE = "docs/how-to/give-an-agent-tools.md"


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_a_model_without_tools_answers_the_tools_tasks_at_once(tmp_path):
    experiment = "+experiment=tools"
    reader = Reader(PAGE, tmp_path, {experiment: f"{experiment} engine.port={free_port()}"})
    *steps, report = reader.commands("python data/teach_base_model.py")

    for command in steps:
        reader.types(command, timeout_s=600)
    assert "rollout" in reader.types(report)
    episodes = list(read_iteration(RunPaths(reader.home / "tools/run"), "train", 1, TRAJECTORY))
    assert len(episodes) == 32
    assert {str(episode.status) for episode in episodes} == {"completed"}
    assert {len(episode.steps) for episode in episodes} == {1}
