"""Many nodes: real `run.sh` ranks over one log path, with simulated engines and trainings."""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster.simulated_cluster import SimulatedCluster, read_episodes
from tests.support.ports import quiet_port

BOTH = ("--rl-phase", "both", "--no-final-eval", "--eval-interval", "1")
SIZES = ("env_config.train_tasks_rollout_size=-1", "env_config.test_tasks_rollout_size=-1")
QUICK = (*SIZES, "cluster.heartbeat_s=0.5", "cluster.lease_s=6", "cluster.chunk_tasks=2")
SLOW_ENGINE = {"SIMULATED_ENGINE": "--latency constant:1 --max-num-seqs 2"}
"""An engine so slow that something happens in mid-phase; then the test says `hurry`."""
SLOWER_ENGINE = {"SIMULATED_ENGINE": "--latency constant:3 --max-num-seqs 2"}
"""There is work left when another node has started."""
TASKS = 48
LIMIT_S = 120

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def make_cluster(tmp_path):
    clusters: list[SimulatedCluster] = []

    def make(num_nodes: int, *overrides: str, **fields) -> SimulatedCluster:
        words = (*QUICK, *overrides)
        clusters.append(SimulatedCluster(tmp_path, num_nodes, tasks=TASKS, overrides=words, **fields))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.end()


def wait_until(cluster: SimulatedCluster, condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, outputs(cluster)
        time.sleep(0.05)


def outputs(cluster: SimulatedCluster) -> str:
    return "\n".join(f"== {name}\n{cluster.output(name)[-3000:]}" for name in cluster.processes)


def recorded(cluster: SimulatedCluster, rank: int | None = None) -> int:
    """Lines in the files of the first iteration, headers aside: of all nodes, or of one.

    A file that is being replaced has a name that begins with a dot.
    """
    node = "" if rank is None else f"_rank_{rank}"
    files = (cluster.log / "train_trajectories").glob(f"train*.iteration1{node}*")
    return sum(max(0, path.read_bytes().count(b"\n") - 1) for path in files if path.suffix != ".json")


def meeting(cluster: SimulatedCluster, nodes: int) -> list[Path]:
    """Return what the nodes of a training left that began with so many."""
    return list(cluster.log.glob(f"llamafactory_data/*/meeting-{nodes}/*"))


def assert_ended(cluster: SimulatedCluster, **statuses: int) -> None:
    """Check the exit statuses of the nodes that were not killed, and that no process is left."""
    expected = {name.replace("_", "-"): status for name, status in statuses.items()}
    assert cluster.wait(LIMIT_S) == expected, outputs(cluster)
    assert cluster.living() == []


def assert_whole(cluster: SimulatedCluster, iteration: int, split: str = "train") -> None:
    keys = Counter(read_episodes(cluster, split, iteration))
    assert keys == Counter({f"{split}-{number}:0:0": 1 for number in range(TASKS)})


def start_and_record(
    cluster: SimulatedCluster, rank: int | None, count: int = 2, engine: dict[str, str] = SLOW_ENGINE
) -> None:
    """Start all nodes, and wait until one has recorded some episodes, or all together have."""
    cluster.start_all(*BOTH, "--max-iterations", "1", **engine)
    wait_until(cluster, lambda: recorded(cluster, rank) >= count)


def kill(cluster: SimulatedCluster, name: str) -> None:
    """The whole node at once, guard included, as when the machine is taken away."""
    pids = cluster.pids_of(name)
    for sign in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                continue
    cluster.processes.pop(name).wait(10)


def test_nodes_collect_by_weight_train_together_and_end_well(make_cluster):
    cluster = make_cluster(2, weights=(1, 3))

    def start(rank: int, places: int) -> None:
        engine = f"--latency constant:0.8 --max-num-seqs {places}"
        words = (*BOTH, "--max-iterations", "2", f"env_config.server_size={places}")
        cluster.start(rank, *words, SIMULATED_ENGINE=engine)

    start(1, places=6)  # a worker may start first
    wait_until(cluster, lambda: "waiting for the master (rank 0)" in cluster.output("rank-1"))
    start(0, places=2)
    wait_until(cluster, lambda: recorded(cluster) == TASKS)
    cluster.hurry()

    assert_ended(cluster, rank_0=0, rank_1=0)
    assert abs(recorded(cluster, 1) - TASKS * 3 / 4) <= 6
    for iteration in (1, 2):
        assert_whole(cluster, iteration)
        assert_whole(cluster, iteration, "test")
    assert (cluster.log / "model.pt").resolve().name == "version-000002"


def test_the_rest_finish_without_nodes_lost_in_a_rollout_and_a_training(make_cluster):
    cluster = make_cluster(3)
    start_and_record(cluster, 2, engine=SLOW_ENGINE | {"SIMULATED_TRAINING_HANGS_WITH": "2"})
    kill(cluster, "rank-2")
    cluster.hurry()
    wait_until(cluster, lambda: len(meeting(cluster, 2)) == 2)
    kill(cluster, "rank-1")

    assert_ended(cluster, rank_0=0)
    for rank in (1, 2):
        assert re.search(rf"rank {rank} .*is dead", cluster.output("rank-0"))
    assert len(meeting(cluster, 1)) == 1
    assert_whole(cluster, 1)
    assert_whole(cluster, 1, "test")
    assert (cluster.log / "model.pt").resolve().name == "version-000001"


@pytest.mark.extended
def test_a_frozen_worker_is_given_up_and_stops_by_itself_when_it_wakes(make_cluster):
    cluster = make_cluster(2)
    start_and_record(cluster, 1)
    frozen = cluster.pids_of("rank-1")
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    cluster.hurry()
    assert cluster.processes["rank-0"].wait(LIMIT_S) == 0, outputs(cluster)
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)

    assert cluster.processes["rank-1"].wait(60) == 75, outputs(cluster)
    assert_whole(cluster, 1)
    assert cluster.living() == []


def test_a_second_node_of_a_rank_is_refused_and_fewer_resume_a_killed_run(make_cluster):
    cluster = make_cluster(2)
    start_and_record(cluster, 1, engine=SLOWER_ENGINE)
    first, cluster.ports[1] = cluster.processes["rank-1"], quiet_port()
    second = cluster.start(1, *BOTH, "--max-iterations", "1")
    assert second.wait(60) == 78, cluster.output("rank-1")
    assert "rank 1 is taken by process" in cluster.output("rank-1")

    kill(cluster, "rank-0")
    assert first.wait(60) == 75, cluster.output("rank-1")
    assert "rank 0" in cluster.output("rank-1")
    assert cluster.living() == []
    cluster.processes.clear()
    before = recorded(cluster)

    alone = make_cluster(1)
    alone.start(0, *BOTH, "--max-iterations", "1", "--resume")
    assert_ended(alone, rank_0=0)
    assert_whole(alone, 1)
    assert recorded(alone) >= before


def test_a_joined_node_helps_and_hands_its_work_back_when_asked_to_leave(make_cluster):
    cluster = make_cluster(1, "env_config.server_size=4")
    cluster.start(0, *BOTH, "--max-iterations", "1", **SLOWER_ENGINE)
    wait_until(cluster, lambda: recorded(cluster) >= 1)
    joiner = cluster.join("joiner", **SLOW_ENGINE)
    wait_until(cluster, lambda: recorded(cluster, 1) >= 2)
    joiner.terminate()

    assert joiner.wait(30) == 143, outputs(cluster)
    cluster.hurry()
    assert cluster.wait(LIMIT_S)["rank-0"] == 0, outputs(cluster)
    assert_whole(cluster, 1)
    assert cluster.living() == []


@pytest.mark.extended
def test_with_on_node_loss_stop_the_run_ends_after_the_phase(make_cluster):
    cluster = make_cluster(2, "cluster.on_node_loss=stop")
    start_and_record(cluster, 1)
    kill(cluster, "rank-1")
    cluster.hurry()

    assert_ended(cluster, rank_0=75)
    output = cluster.output("rank-0")
    assert "rank 1 (" in output and "with cluster.on_node_loss=stop the run ends here" in output
    assert_whole(cluster, 1)
    assert not (cluster.log / "model.pt").exists()


@pytest.mark.extended
def test_with_on_node_loss_wait_the_next_phase_awaits_the_replacement(make_cluster):
    cluster = make_cluster(2, "cluster.on_node_loss=wait", "cluster.replacement_timeout_s=90")
    start_and_record(cluster, 1)
    kill(cluster, "rank-1")
    cluster.hurry()
    wait_until(cluster, lambda: "another node has to take its place" in cluster.output("rank-0"))
    cluster.start(1, *BOTH, "--max-iterations", "1")

    assert_ended(cluster, rank_0=0, rank_1=0)
    assert_whole(cluster, 1)
    assert len(meeting(cluster, 2)) == 2
