"""A node that is told to leave as Slurm tells it: every process of the node gets the signal, not one."""

import contextlib
import json
import os
import signal

import pytest

from tests.shell.conftest import wait_until
from tests.support.cluster.simulated_cluster import SimulatedCluster, read_episodes

LEASE_S = 30
NUM_TASKS = 48
BUSY = {"SIMULATED_ENGINE": "--latency constant:0.4 --max-num-seqs 2"}
SETTINGS = (
    "env_config.train_tasks_rollout_size=-1",
    "rollout.completion_threshold=1.0",
    "rollout.min_vllm_sessions=2",
    "rollout.max_vllm_sessions=2",
    "env_config.server_size=2",
    "cluster.chunk_tasks=2",
    f"cluster.lease_s={LEASE_S}",
)
ROLLOUT = ("--rl-phase", "rollout", "--rollout-split", "train-only", "--max-iterations", "1")


@pytest.fixture
def cluster(tmp_path):
    cluster = SimulatedCluster(tmp_path, num_nodes=1, tasks=NUM_TASKS, overrides=SETTINGS)
    yield cluster
    cluster.end()


def status_of(cluster, rank):
    view = json.loads((cluster.log / "cluster" / "master.json").read_text())
    return {member["rank"]: member["status"] for member in view["members"]}.get(rank)


def has_recorded(cluster, rank):
    files = (cluster.log / "train_trajectories").glob(f"train*_rank_{rank}*")
    return any(path.read_bytes().count(b"\n") > 1 for path in files)


def test_a_node_whose_processes_all_get_term_says_that_it_leaves(cluster):
    cluster.start(0, *ROLLOUT, **BUSY)
    node = cluster.join("joined", **BUSY)
    wait_until(lambda: has_recorded(cluster, 1), 60)

    for pid in cluster.pids_of("joined"):
        with contextlib.suppress(ProcessLookupError):  # short-lived ones end by themselves meanwhile
            os.kill(pid, signal.SIGTERM)

    node.wait(LEASE_S)
    wait_until(lambda: status_of(cluster, 1) != "alive", LEASE_S)
    assert status_of(cluster, 1) == "left"
    assert cluster.processes["rank-0"].wait(60) == 0, cluster.output("rank-0")
    assert len(set(read_episodes(cluster, "train", 1))) == NUM_TASKS
