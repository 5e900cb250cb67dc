"""docs/how-to/launch-with-slurm.md, typed against a real Slurm of five nodes on this machine.

What the page asks Slurm for is typed as it stands; the GPUs are numbers that Slurm was told of. The engines
are simulated where a block is about Slurm's words, and real where its run trains.
"""

import json
import shutil
import signal
import time

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.integration.docs.reader import Reader
from tests.integration.lacking import skip_lacking
from tests.integration.slurm.slurm_cluster import SlurmCluster, SlurmUnavailable, wait_until
from tests.integration.slurm.test_provider import provider_settings  # noqa: F401
from tests.support.cluster.simulated_cluster import SimulatedCluster

PAGE = "docs/how-to/launch-with-slurm.md"
NODES = 5
TASKS = 60
KINDS = (
    "'pool.scale.kinds=[{name: spot, price_per_hour: 1.1, min_engines: 1, max_engines: 16, start_s: 180}]'"
    " pool.admin_token_file=/shared/admin.token"
)
"""Lines of a run about its machines, as the page shows them."""

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    try:
        with SlurmCluster(tmp_path_factory.mktemp("slurm") / "cluster", NODES) as cluster:
            yield cluster
    except SlurmUnavailable as reason:
        skip_lacking(f"Slurm cannot start here: {reason}")


@pytest.fixture
def reader_with(cluster, tmp_path):
    """Makes the reader, who has a user's environment of this cluster and the pool's two tokens."""

    def make(instead, **variables):
        reader = Reader(PAGE, tmp_path, instead)
        reader.environment = variables | cluster.environ | reader.environment
        tokens = "umask 077; for name in pool admin; do openssl rand -hex 32 >{}/$name.token; done"
        reader.types(tokens.format(reader.shared))
        return reader

    yield make
    cluster.end_jobs()


def submitted(printed):
    """The number in sbatch's line."""
    assert printed.startswith("Submitted batch job "), printed
    return printed.split()[-1]


def episodes_of(reader):
    return list(read_iteration(RunPaths(reader.shared / "exp1"), "train", 1, TRAJECTORY))


def wait_for_end(cluster, reader, job, timeout_s):
    cluster.wait_for_state(job, "COMPLETED", "FAILED", timeout_s=timeout_s)
    output = (reader.checkout / f"slurm-{job}.out").read_text()
    assert cluster.field_of(job, "ExitCode") == "0:0", output[-4000:]


def status_of(reader):
    """Status of the pool from the manager that the page's file names."""
    url = (reader.shared / "exp1/runs/latest/pool.url").read_text().strip()
    token = (reader.shared / "pool.token").read_text().strip()
    return json.loads(reader.types(f"curl -s -H 'Authorization: Bearer {token}' {url}/status"))


def test_a_run_on_four_nodes_is_watched_and_an_idle_array_node_helps(reader_with, cluster, tmp_path):
    simulated = SimulatedCluster(tmp_path / "simulated", num_nodes=1, tasks=TASKS)
    keys = (
        f"--max-iterations 1 model_config.base_model={simulated.home / 'model'} page.port=off"
        " env_config.train_tasks_rollout_size=-1 env_config.test_tasks_rollout_size=4"
        " env_config.server_size=4 rollout.completion_threshold=1.0"
        " rollout.min_vllm_sessions=4 rollout.max_vllm_sessions=4"
    )
    reader = reader_with(
        {"--eval-interval 6": f"--eval-interval 1 {keys}"},
        **simulated.environ(SIMULATED_ENGINE="--latency=constant:4 --max-num-seqs=4"),
    )
    (simulated.home / "data").rename(reader.shared / "data")
    job = submitted(reader.types(reader.block("sbatch --partition=gpu")))
    helpers = submitted(
        reader.types(reader.block("sbatch --partition=preemptible --account=lab --gpus-per-node"))
    )

    reader.replace("4711", job)
    squeue, tail, doctor = reader.commands("squeue --me")
    wait_until((reader.checkout / f"slurm-{job}.out").exists, 60, lambda: "the job's output")
    assert {"rl-run", "rl-join"} <= set(reader.types(squeue).split())
    with reader.leaves_running(tail) as tailing:
        tailing.wait_for("3: train 1 ", 120)
        tailing.wait_for("cluster: rank 4 (", 60)
    assert "rank 3 (" in reader.types(doctor)

    wait_for_end(cluster, reader, job, timeout_s=300)
    cluster.wait_for_state(f"{helpers}_0", "COMPLETED")
    cluster.wait_for_state(f"{helpers}_9", "COMPLETED", timeout_s=120)  # its turn came after the run
    assert len({episode.key for episode in episodes_of(reader)}) == TASKS
    manifest = reader.shared / "exp1/train_trajectories/train_trajectories.jsonl.iteration1.manifest.json"
    shares = {entry["rank"]: entry["episodes"] for entry in json.loads(manifest.read_text())}
    assert set(shares) == {0, 1, 2, 3, 4}
    assert sum(shares.values()) == TASKS


def test_engines_of_an_array_wait_for_their_pool_and_one_is_drained(
    reader_with,
    cluster,
    provider_settings,  # noqa: F811
):
    reader = reader_with({"--price 1.1": f"--price 1.1 {provider_settings['worker']}"})
    engines = submitted(reader.types(reader.block("sbatch --partition=preemptible --account=lab --gpus=1")))
    cluster.wait_for_state(f"{engines}_3", "RUNNING")
    latest = reader.shared / "exp1/runs/latest"
    latest.mkdir(parents=True)
    manager = (
        f"python -m rl_agent.cli manager port={free_port()} token_file={reader.shared}/pool.token"
        f" --url-file {latest}/pool.url"
    )
    with reader.leaves_running(manager) as running:

        def engines_of_the_pool():
            time.sleep(1)
            return status_of(reader)["engines"] if (latest / "pool.url").exists() else []

        def ready():
            return [engine for engine in engines_of_the_pool() if engine["state"] == "ready"]

        running.wait_until(lambda: len(ready()) == NODES, 120)  # as many as there are nodes
        assert {engine["price_per_hour"] for engine in ready()} == {1.1}
        # Slurm 22.05 sends it, tries again, and ends with 229 because the task is ending.
        reader.types(f"scancel --batch --signal=TERM {engines}_3 || test $? = 229")
        cluster.wait_for_state(f"{engines}_3", "COMPLETED", "FAILED")
        assert cluster.field_of(f"{engines}_3", "Restarts") == "0"
        reader.types(f"scancel {engines}")
        running.wait_until(lambda: not engines_of_the_pool(), 90)


@pytest.mark.vllm
@pytest.mark.timeout(1500)
def test_a_run_on_two_nodes_trains_with_an_engine_of_pool_scale(reader_with, cluster, small):
    worker = small.worker.split(" ", 2)[2].replace("'", '"')  # the model is what the pool wants
    keys = small.served(f"pool.port={free_port()}", "cluster.interface=lo")
    kinds = KINDS.replace("max_engines: 16", "max_engines: 1")
    reader = reader_with(
        {
            "sbatch … --nodes": "sbatch --partition=gpu --nodes",
            "trainer=grpo ": "trainer=grpo_cpu ",
            "run.sbatch … ": "run.sbatch --data-path /shared/data --log-path /shared/exp1 ",
            "--eval-interval 6": f"--eval-interval 6 --max-iterations 1 {keys} {kinds}",
            "pool.token'": f"pool.token {worker}'",
            "python -m rl_agent.cli pool scale": "exec python -m rl_agent.cli pool scale --settle-s 5",
        }
    )
    shutil.copytree(small.data, reader.shared / "data")
    (reader.shared / "logs").mkdir()
    with reader.leaves_running(reader.block("python -m rl_agent.cli pool scale")) as scaling:
        job = submitted(reader.types(reader.block("sbatch … --nodes=2")))
        scaling.wait_for("1 in the pool", 600)
        wait_for_end(cluster, reader, job, timeout_s=600)
        assert len({episode.key for episode in episodes_of(reader)}) == 12 * 8
        scaling.wait_for("its run is over", 60)
        wait_until(lambda: not cluster.call("squeue", "--noheader"), 200, scaling.printed)
        scaling.process.send_signal(signal.SIGINT)
        output = scaling.ends_well(180)
        assert "no machine is left" in output, output
