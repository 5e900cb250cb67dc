"""docs/how-to/train-on-verifiers-environments.md: a real environment, and the quickstart's model on a CPU.

`RL_AGENT_VERIFIERS_PYTHON` is a Python of an environment made as the page says, with verifiers 0.4.
"""

import json
import os

import pytest

from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.integration.docs.reader import Reader

PAGE = "docs/how-to/train-on-verifiers-environments.md"
PYTHON = os.environ.get("RL_AGENT_VERIFIERS_PYTHON", "")
TASKS, SIBLINGS, ITERATIONS = 4, 3, 2
pytestmark = [
    pytest.mark.extended,
    pytest.mark.vllm,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(not PYTHON, reason="RL_AGENT_VERIFIERS_PYTHON names no Python with verifiers"),
]
TWO_TRIES = '''
import json
import os
from pathlib import Path

import verifiers.v1 as vf

HERE = Path(__file__).parent


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    pass


class SumTaskset(vf.Taskset[SumTask]):
    def load(self):
        for line in map(json.loads, (HERE / "sums.jsonl").read_text().splitlines()):
            yield SumTask(SumData(prompt=line["prompt"], answer=line["answer"]), self.config.task)


class TwoTriesConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class TwoTries(vf.Env[TwoTriesConfig]):
    """Asks again after a wrong answer, for half of the reward; it dies in an episode of the third task."""

    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment, worth = await interaction.turn(), 1.0
            if task.data.idx == 2 and not (HERE / "died").exists():
                (HERE / "died").touch()
                os._exit(9)
            if segment.last_reply.strip() != task.data.answer:
                segment, worth = await interaction.turn(task.data.prompt), 0.5
        right = segment.last_reply.strip() == task.data.answer
        interaction.trace.record_reward("right", float(right), worth)


__all__ = ["SumTaskset", "TwoTries"]
'''
TOML = """
[env.taskset]
id = "two-tries"

[env.player]
harness = {id = "null"}
runtime = {type = "subprocess"}
"""


def test_an_environment_of_two_turns_trains_though_it_dies_once(tmp_path, taught):
    words = f"+experiment=quickstart_grpo model_config.base_model={taught.model} page.port=off"
    words += f" env_config.train_tasks_rollout_size={TASKS} rollout.group_size={SIBLINGS}"
    words += " trainer.mini_batches=1 env_config.server_size=3 rollout.step_timeout_s=600"
    instead = {
        "/home/user/agent_env/bin/python": PYTHON,
        " 0:100 ": " 0:2 ",
        "100:1000": f"2:{2 + TASKS}",
        "--eval-interval 1": f"--no-final-eval --eval-interval 6 --max-iterations {ITERATIONS} {words}",
        "trainer=grpo trainer.placement=hybrid": "",
    }
    reader = Reader(PAGE, tmp_path, instead)
    reader.environment["PYTHONPATH"] = str(reader.home)
    (reader.home / "my_env.toml").write_text(TOML)
    (reader.home / "two_tries.py").write_text(TWO_TRIES)
    (reader.home / "sums.jsonl").write_text((taught.data / "train.jsonl").read_text())
    _, rest = reader.block("python3 -m venv").split("# and your environment\n")
    reader.types(rest, timeout_s=2200)

    paths = RunPaths(reader.home / "reversed")
    lines = map(json.loads, (reader.home / "train.jsonl").read_text().splitlines())
    names = {line["task_id"] for line in lines}
    assert names == {f"two-tries-{number}" for number in range(2, 2 + TASKS)}
    lost, turns = [], set()
    for iteration in range(1, ITERATIONS + 1):
        episodes = list(read_iteration(paths, "train", iteration, TRAJECTORY))
        assert len(episodes) == TASKS * SIBLINGS and {episode.task.task_id for episode in episodes} == names
        for episode in episodes:
            assert [step.begins for step in episode.steps] == [""] * len(episode.steps)
            assert all(step.generation.token_ids and step.generation.spans for step in episode.steps)
            assert episode.reward in ((1.0,) if len(episode.steps) == 1 else (0.0, 0.5))
            turns.add(len(episode.steps))
            lost += [attempt.failure.message for attempt in episode.lost_attempts]
    assert turns == {1, 2}
    assert lost and all("ended with status 9" in reason for reason in lost)
    steps = [record for record in metrics.read(paths.metrics) if "update_step" in record]
    assert sum(step["trainer/episodes"] for step in steps) == ITERATIONS * TASKS * SIBLINGS
    assert max(step["trainer/behaviour_kl"] for step in steps) < 0.01
