"""Runs of several nodes under a real Slurm; the engine is simulated, and so is the training."""

import json
import socket

import pytest

from tests.integration.slurm.slurm_jobs import Jobs, cluster  # noqa: F401
from tests.support.cluster.simulated_cluster import SimulatedCluster, read_episodes

NUM_TASKS = 60
BUSY = {"SIMULATED_ENGINE": "--latency=constant:1 --max-num-seqs=4"}  # four episodes a second on each node
ROLLOUT = ("--rl-phase", "rollout", "--rollout-split", "train-only")
OF_THE_RUN = ("--nodelist=n0",)
SPARE = ("--partition=preemptible", "--nodelist=n1")

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]


@pytest.fixture
def simulated(tmp_path):
    one_node_cluster = SimulatedCluster(tmp_path, num_nodes=1, tasks=NUM_TASKS)
    yield one_node_cluster
    one_node_cluster.end()


@pytest.fixture
def jobs(cluster, simulated):  # noqa: F811
    settings = (
        f"model_config.base_model={simulated.home / 'model'}",
        "env_config.train_tasks_rollout_size=-1",
        "env_config.test_tasks_rollout_size=4",
        "rollout.completion_threshold=1.0",
        "rollout.min_vllm_sessions=4",  # a node claims what it can run, and no more
        "rollout.max_vllm_sessions=4",
        "env_config.server_size=4",
    )
    yield Jobs(cluster, simulated.home, settings, simulated.environ(**BUSY), simulated.living)
    cluster.end_jobs()


def members(jobs):
    """Rank and status of every node that the master has admitted."""
    path = jobs.log / "cluster" / "master.json"
    view = json.loads(path.read_text()) if path.exists() else {"members": []}
    return {member["rank"]: member["status"] for member in view["members"]}


def shares(jobs):
    """Episodes of the first iteration by the rank that ran them."""
    manifest = jobs.log / "train_trajectories" / "train_trajectories.jsonl.iteration1.manifest.json"
    entries = json.loads(manifest.read_text())
    return {
        rank: sum(e["episodes"] for e in entries if e["rank"] == rank)
        for rank in {e["rank"] for e in entries}
    }


def wait_until_some_are_recorded(jobs, simulated, job, ranks):
    def is_so():
        shards = list((jobs.log / "train_trajectories").glob("*.checkpoint"))
        return len(shards) == ranks and len(read_episodes(simulated, "train", 1)) > 4 * ranks

    jobs.wait_for(is_so, f"to record episodes on {ranks} nodes", job)


def test_a_job_of_three_nodes_collects_trains_and_publishes_once(jobs, simulated):
    job = jobs.run(
        "--rl-phase", "both", "--no-final-eval",
        "--eval-interval", "1", "--max-iterations", "1", options=("--nodes=3",)
    )  # fmt: skip

    jobs.wait(job, "COMPLETED", timeout_s=100)
    assert jobs.plan["command"]["rank_weights"] == [1, 1, 1]
    assert len(set(read_episodes(simulated, "train", 1))) == NUM_TASKS
    assert sum(shares(jobs).values()) == NUM_TASKS
    assert set(shares(jobs)) == {0, 1, 2}
    assert (jobs.log / "model.pt").resolve().name == "version-000001"


def test_a_master_that_is_refused_ends_its_job_with_its_line(jobs):
    with socket.create_server(("127.0.0.1", jobs.cluster.engine_port("n0"))):
        job = jobs.run(*ROLLOUT, "--max-iterations", "1", options=("--nodes=3",))

        jobs.wait(job, "FAILED")

    assert jobs.cluster.field_of(job, "ExitCode") == "69:0"  # as the machine is now
    assert "is in use by process" in jobs.output(job)


def test_a_drained_job_of_three_nodes_goes_on_with_its_episodes(jobs, simulated):
    job = jobs.run(*ROLLOUT, "--max-iterations", "1", options=("--nodes=3",))
    wait_until_some_are_recorded(jobs, simulated, job, 3)

    jobs.cluster.call("scancel", "--signal=TERM", job)

    jobs.wait(job, "COMPLETED", timeout_s=100)
    assert jobs.cluster.field_of(job, "Restarts") == "1"
    assert len(set(read_episodes(simulated, "train", 1))) == NUM_TASKS
    assert sum(shares(jobs).values()) == NUM_TASKS  # none was run twice


def test_a_job_that_slurm_takes_off_a_broken_node_goes_on_elsewhere(jobs, simulated):
    job = jobs.run(*ROLLOUT, "--max-iterations", "1", options=("--nodes=2",))
    wait_until_some_are_recorded(jobs, simulated, job, 2)

    # The node comes back when its daemon is heard of again.
    jobs.cluster.call("scontrol", "update", "nodename=n0", "state=down", "reason=test")

    jobs.wait(job, "COMPLETED", timeout_s=100)
    assert jobs.cluster.field_of(job, "Restarts") == "1"
    assert sum(shares(jobs).values()) == len(set(read_episodes(simulated, "train", 1))) == NUM_TASKS


def test_a_node_that_joins_takes_a_share_and_ends_with_the_run(jobs, simulated):
    run = jobs.run(*ROLLOUT, "--max-iterations", "1", options=OF_THE_RUN)
    joined = jobs.join(options=SPARE)

    jobs.wait(run, "COMPLETED", timeout_s=100)
    jobs.wait(joined, "COMPLETED")
    assert set(shares(jobs)) == {0, 1}
    assert sum(shares(jobs).values()) == len(set(read_episodes(simulated, "train", 1))) == NUM_TASKS


def test_a_preempted_node_hands_its_work_back_and_joins_again(jobs, simulated):
    run = jobs.run(*ROLLOUT, "--max-iterations", "3", options=OF_THE_RUN)
    joined = jobs.join(options=SPARE)
    wait_until_some_are_recorded(jobs, simulated, joined, 2)

    urgent = jobs.occupy("n1")

    jobs.cluster.wait_for_state(urgent, "COMPLETED")
    jobs.wait_for(lambda: members(jobs)[1] == "left", "to be seen leaving", joined)
    jobs.wait_for(lambda: members(jobs).get(2) == "alive", "to join again", joined)
    jobs.wait(run, "COMPLETED", timeout_s=100)
    jobs.wait(joined, "COMPLETED")
    assert jobs.cluster.field_of(joined, "Restarts") == "1"
    for iteration in (1, 2, 3):
        assert len(set(read_episodes(simulated, "train", iteration))) == NUM_TASKS
