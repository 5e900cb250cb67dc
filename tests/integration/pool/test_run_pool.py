"""A whole iteration over a pool of real engines: one joins, one is killed, nothing is missing."""

import os
import signal
import subprocess
import sys
import time

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.paths import PROJECT_ROOT
from rl_agent.pool.client import ask
from rl_agent.rollout.trajectories.shard import read_shard
from tests.integration.real_run import ENGINE_ARGS, Run

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1500)]

LIMIT_S = 900
NUM_TASKS = 60
NUM_TEST_TASKS = 6


@pytest.fixture
def run(tmp_path):
    with Run(tmp_path) as run:
        run.change(
            {
                "rollout.max_vllm_sessions": 12,
                "rollout.min_vllm_sessions": 12,
                "env_config.server_size": 12,
                "env_config.train_tasks_rollout_size": NUM_TASKS,
                "env_config.test_tasks_rollout_size": NUM_TEST_TASKS,
                "policy_config.max_new_tokens": 160,
            }
        )
        yield run


def join(run: Run, manager: str, name: str, *more: str, engine_args: str = ENGINE_ARGS) -> subprocess.Popen:
    script = PROJECT_ROOT / "scripts" / "join_pool.sh"
    words = ["bash", str(script), "--manager", manager, "--name", name, "--capacity", "4"]
    words += ["--engine-args", engine_args, "--log", str(run.home / f"{name}.log"), *more]
    cpu = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_WAIT_POLICY": "PASSIVE"}
    environ = os.environ | cpu | {"TEST_MARK": str(run.home), "RL_AGENT_PYTHON": sys.executable}
    with (run.home / f"{name}.worker").open("w") as output:
        return subprocess.Popen(words, env=environ, stdout=output, stderr=output, start_new_session=True)


def join_early(run: Run, manager: str, name: str, **more: str) -> subprocess.Popen:
    """Its engine is up when this returns, and waits for the manager: a rollout may be over in seconds."""
    joined = join(run, manager, name, "--model", str(run.model), **more)
    log, deadline = run.home / f"{name}.worker", time.monotonic() + 300
    while "waiting for the manager" not in log.read_text():
        assert joined.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return joined


def engines(manager: str) -> dict[str, dict]:
    return {engine["name"]: engine for engine in ask(manager, "/status", None)["engines"]}


def test_both_with_a_pool_survives_an_engine_that_joins_and_is_killed(run):
    port = free_port()
    manager = f"http://127.0.0.1:{port}"
    joined = join_early(run, manager, "spot")
    process = run.start(
        "--rl-phase", "both", "--no-final-eval",
        "--eval-interval", "1", "--max-iterations", "1", "trainer.num_train_epochs=1",
        "pool=elastic",
        f"pool.port={port}",
    )  # fmt: skip
    run.wait_for_episodes(process, 1)
    run.wait_until(lambda: engines(manager).get("spot", {}).get("running"), process, LIMIT_S)
    os.killpg(joined.pid, signal.SIGKILL)
    joined.wait(10)
    run.wait_until(lambda: "spot" not in engines(manager), process, 30)
    again = join(run, manager, "again")
    assert process.wait(LIMIT_S) == 0, (run.home / "output").read_text()[-4000:]

    for split, count in (("train", NUM_TASKS), ("test", NUM_TEST_TASKS)):
        _, episodes = read_shard(run.paths.shard(split, 1))
        keys = [str(episode.key) for episode in episodes]
        assert len(keys) == len(set(keys)) == count
        assert not any(episode.failure for episode in episodes)
    assert run.paths.model_link.resolve().name == "version-000001"
    again.terminate()
    assert again.wait(60) == 0, (run.home / "again.worker").read_text()
    deadline = time.monotonic() + 20
    while run.processes():
        assert time.monotonic() < deadline, "something was left behind"
        time.sleep(0.1)
