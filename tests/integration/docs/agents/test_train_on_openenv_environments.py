"""docs/how-to/train-on-openenv-environments.md: a real server, and the quickstart's model on a CPU.

`RL_AGENT_OPENENV_PYTHON` is a Python of an environment made as the page says, with openenv 0.10.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.integration.docs.reader import Reader
from tests.support.ports import quiet_port

PAGE = "docs/how-to/train-on-openenv-environments.md"
PYTHON = os.environ.get("RL_AGENT_OPENENV_PYTHON", "")
TASKS, SIBLINGS, ITERATIONS = 8, 4, 2
pytestmark = [
    pytest.mark.extended,
    pytest.mark.vllm,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(not PYTHON, reason="RL_AGENT_OPENENV_PYTHON names no Python with openenv"),
]
TWO_TRIES = '''
import os
from pathlib import Path

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

from models import MyAction, MyObservation

DIED = Path(__file__).parent / "died"


class MyEnvironment(Environment):
    """Asks a sum again after a wrong answer, for half of the reward; the server dies once in doing so."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, sum="", answer="", dies=False):
        self.state_, self.sum, self.answer, self.dies = State(episode_id=episode_id), sum, answer, dies
        return MyObservation(echoed_message="")

    def step(self, action: MyAction):
        self.state_.step_count += 1
        is_second, is_right = self.state_.step_count == 2, action.message.strip() == self.answer
        if self.dies and is_second and not DIED.exists():
            DIED.touch()
            os._exit(9)
        reward = (0.5 if is_second else 1.0) * is_right
        return MyObservation(echoed_message=self.sum, done=is_right or is_second, reward=reward)

    @property
    def state(self):
        return self.state_
'''


def make_environment(home: Path) -> None:
    """Change OpenEnv's template as a user does: observations of one text, and places for all episodes."""
    subprocess.run([Path(PYTHON).parent / "openenv", "init", "my_env"], cwd=home, check=True)
    folder = home / "my_env"
    models, app = folder / "models.py", folder / "server" / "app.py"
    *kept, length = models.read_text().rstrip().splitlines()
    assert "message_length" in length
    models.write_text("\n".join([*kept, ""]))
    app.write_text(app.read_text().replace("max_concurrent_envs=1", "max_concurrent_envs=8"))
    (folder / "server" / "my_env_environment.py").write_text(TWO_TRIES)


def give_tasks(home: Path, of: Path) -> set[str]:
    lines = list(map(json.loads, (of / "train.jsonl").read_text().splitlines()))
    for split, some in (("test", lines[:2]), ("train", lines[2 : 2 + TASKS])):
        with (home / f"{split}.jsonl").open("w") as file:
            for line in some:
                reset = {"sum": line["prompt"], "answer": line["answer"], "dies": split == "train"}
                task = {"task_id": line["task_id"], "prompt": line["prompt"], "reset": reset}
                file.write(f"{json.dumps(task)}\n")
    return {line["task_id"] for line in lines[2 : 2 + TASKS]}


def test_an_openenv_server_trains_a_model_though_it_dies_once(tmp_path, taught):
    words = f"+experiment=quickstart_grpo model_config.base_model={taught.model} page.port=off"
    words += f" env_config.train_tasks_rollout_size={TASKS} rollout.group_size={SIBLINGS}"
    words += " trainer.mini_batches=1 env_config.server_size=8"
    instead = {
        "/home/user/openenv_env/bin/python": PYTHON,
        "8000": str(quiet_port()),
        "--eval-interval 1": f"--no-final-eval --eval-interval 6 --max-iterations {ITERATIONS} {words}",
        "trainer=grpo trainer.placement=hybrid": "",
    }
    reader = Reader(PAGE, tmp_path, instead)
    make_environment(reader.home)
    names = give_tasks(reader.home, taught.data)
    _, serve = reader.block("python3 -m venv").split("# and what your environment needs\n")
    place, start = serve.strip().splitlines()
    with reader.leaves_running(f"{place}\nuntil {start}; do sleep 1; done") as server:
        server.wait_for("Uvicorn running", 120)
        reader.types(reader.block("bash scripts/run.sh"), timeout_s=2000)

    paths = RunPaths(reader.home / "played")
    lost, turns = [], set()
    for iteration in range(1, ITERATIONS + 1):
        episodes = list(read_iteration(paths, "train", iteration, TRAJECTORY))
        assert len(episodes) == TASKS * SIBLINGS and {episode.task.task_id for episode in episodes} == names
        for episode in episodes:
            assert all(step.generation.token_ids and step.generation.spans for step in episode.steps)
            assert episode.reward in ((1.0,) if len(episode.steps) == 1 else (0.0, 0.5))
            turns.add(len(episode.steps))
            lost += [attempt.failure.message for attempt in episode.lost_attempts]
    assert turns == {1, 2}
    assert lost and all("hung up in answering" in reason for reason in lost)
    steps = [record for record in metrics.read(paths.metrics) if "update_step" in record]
    assert sum(step["trainer/episodes"] for step in steps) == ITERATIONS * TASKS * SIBLINGS
    assert max(step["trainer/behaviour_kl"] for step in steps) < 0.01
