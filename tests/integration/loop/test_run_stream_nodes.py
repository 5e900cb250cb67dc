"""`trainer=grpo` over two `run.sh` of one machine, with real engines: a rank, a node, the master are lost."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from rl_agent.monitor import metrics
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from rl_agent.system.processes import read_groups
from tests.integration.real_run import Run

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(2400)]

TASKS, SIBLINGS, LIMIT_S = 12, 2, 1200
NODES = ("--num-nodes", "2", "--rank-weights", "1,1")
STREAM = (
    "--rl-phase", "both", "--no-final-eval",
    "--eval-interval", "9", "trainer=grpo_cpu", "pool=elastic", "pool.port=0",
    f"rollout.group_size={SIBLINGS}", "trainer.mini_batches=3", "cluster.chunk_tasks=2",
)  # fmt: skip


class Nodes(Run):
    """Two nodes; the second has no engine unless a test says so."""

    def begin(self, rank: int, *more: str) -> subprocess.Popen:
        return self.start(*STREAM, *NODES, "--worker", str(rank), *more, RANK_OF_TEST=str(rank))

    def begin_both(self, iterations: int, *more: str) -> list[subprocess.Popen]:
        limit = ("--max-iterations", str(iterations))
        return [self.begin(0, *limit, *more), self.begin(1, *limit, "pool.local_engine=false")]

    def kill(self, rank: int) -> None:
        """The whole node at once, as when the machine is taken away."""
        pids = self.processes(RANK_OF_TEST=str(rank))
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, sign)

    def trainer(self, rank: int) -> int:
        """The process that trains on a node, below torchrun's."""
        (folder,) = (self.log / "runs" / "latest" / "groups").glob(f"*/rank-{rank}")
        (group,) = [group for group in read_groups(folder) if group.name == "trainer"]
        for child in psutil.Process(group.leader.pid).children():
            if "rl_agent.trainer.grpo.worker" in child.cmdline():
                return child.pid
        raise AssertionError(f"rank {rank} does not train")

    def trainer_logs(self) -> list[Path]:
        return sorted(self.log.glob("runs/latest/logs/**/trainer-*.log"))

    def steps(self) -> dict[int, dict]:
        """The optimizer steps; one that was made again after a kill counts once."""
        return {r["update_step"]: r for r in metrics.read(self.paths.metrics) if "update_step" in r}

    @property
    def output(self) -> str:
        return (self.home / "output").read_text()

    def assert_nothing_is_lost(self, iterations: int) -> None:
        assert self.processes() == []
        assert self.paths.model_link.resolve().name == f"version-{iterations:06}"
        assert (
            sum(step["trainer/episodes"] for step in self.steps().values()) == iterations * TASKS * SIBLINGS
        )
        assert not any("trainer/rejected_groups/too_stale" in step for step in self.steps().values())
        for iteration in range(1, iterations + 1):
            episodes = list(read_iteration(self.paths, "train", iteration, TRAJECTORY))
            assert len({episode.key for episode in episodes}) == TASKS * SIBLINGS
            assert {e.weight_version_min for e in episodes} == {iteration - 1}
            assert {e.weight_version_max for e in episodes} == {iteration - 1}


@pytest.fixture
def run(tmp_path):
    with Nodes(tmp_path) as nodes_run:
        nodes_run.change(
            {"env_config.train_tasks_rollout_size": TASKS, "env_config.test_tasks_rollout_size": 4}
        )
        yield nodes_run


def test_two_nodes_with_an_engine_each_collect_and_train_as_one(run):
    master = run.begin(0, "--max-iterations", "2")
    worker = run.begin(1, "--max-iterations", "2")
    assert [node.wait(LIMIT_S) for node in (master, worker)] == [0, 0], run.output[-4000:]

    run.assert_nothing_is_lost(2)
    assert {step["trainer/engines"] for step in run.steps().values()} == {2}
    assert [path.name for path in run.trainer_logs()] == 2 * ["trainer-1-1.log"]


def test_a_killed_rank_and_then_a_lost_node_cost_no_sample(run):
    master, worker = run.begin_both(3)
    run.wait_until(lambda: len(run.steps()) >= 1, master, LIMIT_S)
    os.kill(run.trainer(1), signal.SIGKILL)
    run.wait_until(
        lambda: len(run.steps()) >= 4, master, LIMIT_S
    )  # both train again, in the second iteration
    assert worker.poll() is None
    run.kill(1)
    assert worker.wait(30) == -signal.SIGKILL
    assert master.wait(LIMIT_S) == 0, run.output[-4000:]

    run.assert_nothing_is_lost(3)


def test_without_its_master_all_stops_and_the_same_commands_resume(run):
    master, worker = run.begin_both(2)
    run.wait_until(lambda: len(run.steps()) >= 1, master, LIMIT_S)
    run.kill(0)
    assert master.wait(30) == -signal.SIGKILL
    assert worker.wait(120) == 75, run.output[-4000:]
    assert run.processes() == []
    before = len(run.steps())

    master, worker = run.begin_both(2, "--resume")
    assert [node.wait(LIMIT_S) for node in (master, worker)] == [0, 0], run.output[-4000:]
    assert before >= 1
    run.assert_nothing_is_lost(2)
