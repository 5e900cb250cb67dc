"""A streaming trainer over two nodes on this machine, with the real torchrun and gloo."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.config.plan import Plan
from rl_agent.monitor import metrics
from rl_agent.paths import PROJECT_ROOT
from rl_agent.trainer.grpo.launch import trainer_command, trainer_environment
from rl_agent.trainer.llamafactory.launch import Rendezvous
from tests.integration.tiny_model import make_plan
from tests.integration.trainer.stream.stream_run import Rollout, make_uniform_model, stream_settings

pytestmark = pytest.mark.timeout(300)


class Nodes:
    """The nodes of one training; at the end nothing of them is left."""

    def __init__(self, home: Path, model: Path, *, nodes: int, ranks_each: int) -> None:
        words = ("trainer=grpo_cpu", "pool=elastic", f"trainer.nproc_per_node={ranks_each}")
        self.plan: Plan = make_plan(home, model, *words)
        settings = home / "settings.json"
        told = stream_settings(home, model, None, last_iteration=1)
        settings.write_text(told.model_dump_json())
        Rollout(home).whole(1, version=0)
        port, self.processes = free_port(), []
        for node_rank in range(nodes):
            command = trainer_command(self.plan, settings, nodes, Rendezvous(node_rank, "127.0.0.1", port))
            environment = trainer_environment(self.plan, os.environ, nodes) | {"OMP_NUM_THREADS": "1"}
            with (home / f"node-{node_rank}.log").open("wb") as log:
                process = subprocess.Popen(
                    command,
                    cwd=PROJECT_ROOT,
                    env=environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self.processes.append(process)

    def wait(self, timeout_s: float) -> None:
        for node_rank, process in enumerate(self.processes):
            log = self.plan.paths.log_path / f"node-{node_rank}.log"
            assert process.wait(timeout_s) == 0, log.read_text()[-3000:]

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(
                    process.pid, signal.SIGTERM
                )  # torchrun ends its ranks, which have sessions of their own
                process.wait(60)


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[[int], Nodes]]:
    """Start a training of two ranks over so many nodes."""
    model = make_uniform_model(tmp_path / "base")
    started = []

    def start_nodes(nodes: int) -> Nodes:
        home = tmp_path / f"nodes-{nodes}"
        home.mkdir()
        started.append(Nodes(home, model, nodes=nodes, ranks_each=2 // nodes))
        return started[-1]

    yield start_nodes
    for training in started:
        training.end()


def assert_trained(training: Nodes) -> None:
    training.wait(200)
    records = [r for r in metrics.read(training.plan.paths.metrics) if "update_step" in r]
    assert [record["update_step"] for record in records] == [1, 2]
    assert sum(record["trainer/episodes"] for record in records) == 16
    (saved, *_) = (training.plan.paths.streaming / "checkpoints").glob("step-2")
    assert sorted(file.name for file in saved.glob("rank-*.json")) == ["rank-0.json", "rank-1.json"]


def test_two_nodes_train_together_on_every_episode(start):
    training = start(2)
    assert_trained(training)
    assert (training.plan.paths.model_link / "model.safetensors").exists()


@pytest.mark.extended
def test_two_nodes_train_the_very_weights_of_one_node_with_as_many_ranks(start):
    trainings = start(1), start(2)
    for training in trainings:
        assert_trained(training)
    alone, spread = (load_file(t.plan.paths.model_link / "model.safetensors") for t in trainings)
    assert alone.keys() == spread.keys()
    assert all(torch.equal(alone[name], spread[name]) for name in alone)
