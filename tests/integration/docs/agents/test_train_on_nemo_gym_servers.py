"""docs/how-to/train-on-nemo-gym-servers.md: a real server, and the quickstart's model on a CPU.

`RL_AGENT_NEMO_GYM_PYTHON` is a Python of an environment with nemo-gym 0.7 and reasoning-gym; here it serves
as the server's own environment, too.
"""

import json
import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from rl_agent.monitor import metrics
from rl_agent.paths import PROJECT_ROOT, RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.integration.docs.reader import Reader
from tests.support.ports import quiet_ports
from tests.unit.docs.documented_blocks import blocks

PAGE = "docs/how-to/train-on-nemo-gym-servers.md"
PYTHON = os.environ.get("RL_AGENT_NEMO_GYM_PYTHON", "")
TASKS, SIBLINGS, ITERATIONS = 4, 4, 2
pytestmark = [
    pytest.mark.extended,
    pytest.mark.vllm,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(not PYTHON, reason="RL_AGENT_NEMO_GYM_PYTHON names no Python with nemo-gym"),
]
FRAGILE = '''
import os
from pathlib import Path

from resources_servers.reasoning_gym.app import ReasoningGymResourcesServer, ReasoningGymVerifyRequest


class FragileServer(ReasoningGymResourcesServer):
    """The server of reasoning-gym; it dies as it verifies a task that says so, once."""

    async def verify(self, body: ReasoningGymVerifyRequest):
        died = Path(__file__).parent / "died"
        if "split" in body.metadata and not died.exists():
            died.touch()
            os._exit(9)
        return await super().verify(body)


if __name__ == "__main__":
    FragileServer.run_webserver()
'''


def make_server(home: Path, head_port: int, port: int) -> Path:
    """The page's server, but the one above; returns the file that says that it has died."""
    folder = home / "resources_servers" / "fragile"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(FRAGILE)
    (folder / ".venv").symlink_to(Path(PYTHON).parents[1])
    (config,) = blocks(PROJECT_ROOT / PAGE, "text")
    config = config.replace("reasoning_gym", "fragile").replace("9001", str(port))
    (home / "server.yaml").write_text(f"{config}head_server: {{host: 127.0.0.1, port: {head_port}}}\n")
    return folder / "died"


def write_rows(home: Path, of: Path) -> None:
    """Rows as NeMo Gym's data sets for reasoning-gym have them."""
    lines = list(map(json.loads, (of / "train.jsonl").read_text().splitlines()))
    (home / "rows").mkdir()
    for split, some in (("test", lines[:2]), ("train", lines[2 : 2 + TASKS])):
        with (home / "rows" / f"{split}.jsonl").open("w") as file:
            for line in some:
                row = {"responses_create_params": {"input": [{"role": "user", "content": line["prompt"]}]}}
                row |= {"question": line["prompt"], "answer": line["answer"]}
                metadata = line["entry_metadata"] | ({"split": split} if split == "train" else {})
                file.write(f"{json.dumps(row | {'metadata': metadata})}\n")


@contextmanager
def kept_running(reader: Reader, start: str, died: Path):
    """A server that is started again after its death, as a supervisor does."""
    is_over = threading.Event()

    def keep() -> None:
        while not is_over.is_set():
            with reader.leaves_running(start) as server:
                server.wait_for("Uvicorn running", 300)
                is_dead_already = died.exists()
                while not is_over.is_set() and (is_dead_already or not died.exists()):
                    time.sleep(0.1)

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield
    finally:
        is_over.set()
        keeper.join()


def test_a_nemo_gym_server_trains_a_model_though_it_dies_once(tmp_path, taught):
    words = f"+experiment=quickstart_grpo model_config.base_model={taught.model} page.port=off"
    words += f" env_config.train_tasks_rollout_size={TASKS} rollout.group_size={SIBLINGS}"
    words += " trainer.mini_batches=1 env_config.server_size=3"
    port, head_port = quiet_ports(2)
    instead = {
        "/home/user/agent_env/bin/python": str(PROJECT_ROOT / ".venv/bin/python"),
        "gym env start": f"cd /home/user\n{Path(PYTHON).parent}/gym env start +skip_venv_if_present=true",
        "9001": str(port),
        "--eval-interval 1": f"--no-final-eval --eval-interval 6 --max-iterations {ITERATIONS} {words}",
        "trainer=grpo trainer.placement=hybrid": "",
    }
    reader = Reader(PAGE, tmp_path, instead)
    died = make_server(reader.home, head_port, port)
    write_rows(reader.home, taught.data)
    *_, place, command = reader.commands("python3 -m venv /home/user/gym_env")
    start = f"{place}\nuntil {command}; do sleep 1; done"  # its Ray may take too long to start
    with kept_running(reader, start, died):
        _, _, *commands = reader.commands("python3 -m venv /home/user/agent_env")
        for command in commands:
            reader.types(command, timeout_s=2000)

    paths = RunPaths(reader.home / "reasoned")
    lost, rewards = [], []
    for iteration in range(1, ITERATIONS + 1):
        episodes = list(read_iteration(paths, "train", iteration, TRAJECTORY))
        assert len(episodes) == TASKS * SIBLINGS
        assert {episode.task.task_id for episode in episodes} == {f"train-{n}" for n in range(TASKS)}
        for episode in episodes:
            (step,) = episode.steps
            assert step.generation.token_ids and step.generation.spans
            rewards.append(episode.reward)
            lost += [attempt.failure.message for attempt in episode.lost_attempts]
    assert 0 < sum(rewards) < len(rewards)
    assert lost and all("ended with status 1" in reason for reason in lost)
    steps = [record for record in metrics.read(paths.metrics) if "update_step" in record]
    assert sum(step["trainer/episodes"] for step in steps) == ITERATIONS * TASKS * SIBLINGS
    assert max(step["trainer/behaviour_kl"] for step in steps) < 0.01
