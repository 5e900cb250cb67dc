"""The README's loops on this machine's GPUs: CUDA vLLM, LLaMA-Factory and DeepSpeed, GRPO over a pool."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.engine.gpus import count_gpus, memory_in_use, visible_indices
from rl_agent.monitor import metrics
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.integration.real_run import RUN_SH, Run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1500)]

LIMIT_S = 900
TASKS, SIBLINGS = 24, 2
LEFT_MIB = 1024
"""Memory that another program may have taken on a GPU in the meantime."""
STREAM = (
    "--rl-phase", "both", "--no-final-eval",
    "--eval-interval", "9", "--max-iterations", "2", "trainer=grpo", "pool=elastic",
    f"rollout.group_size={SIBLINGS}", "trainer.mini_batches=2", "trainer.parallel.use_liger_kernel=false",
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run(tmp_path) as loop_run:
        loop_run.change(
            {
                "env_config.train_tasks_rollout_size": TASKS,
                "env_config.test_tasks_rollout_size": 8,
                "engine.enforce_eager": "true",
                "engine.gpu_memory_utilization": 0.5,
            }
        )
        yield loop_run


def gpus() -> list[str]:
    """Names of the GPUs that this test may use, as CUDA_VISIBLE_DEVICES has them."""
    return visible_indices(os.environ) or [str(index) for index in range(count_gpus())]


def start(run: Run, *words: str, on: list[str] | None = None) -> subprocess.Popen:
    return run.start(*words, CUDA_VISIBLE_DEVICES=",".join(on or gpus()))


def finish(run: Run, process: subprocess.Popen) -> None:
    assert process.wait(LIMIT_S) == 0, (run.home / "output").read_text()[-6000:]


def wait_until_free(run: Run, process: subprocess.Popen, before: dict[str, int]) -> None:
    """Every GPU has the memory back that it had before, and no process is left."""
    run.seconds_until_gone(process)
    deadline = time.monotonic() + LIMIT_S / 30  # the driver gives memory back a moment after a process ended
    while taken := {name: mib for name, mib in memory().items() if mib > before[name] + LEFT_MIB}:
        assert time.monotonic() < deadline, f"MiB in use: {taken}"
        time.sleep(0.5)


def memory() -> dict[str, int]:
    return {use.index: use.used_mib for use in memory_in_use()}


def check_streamed(run: Run) -> None:
    """Each iteration's episodes are complete, of its own version, and were all trained on."""
    for iteration in (1, 2):
        episodes = list(read_iteration(run.paths, "train", iteration, TRAJECTORY))
        assert len(episodes) == TASKS * SIBLINGS
        assert not any(episode.failure for episode in episodes)
        versions = {e.weight_version_min for e in episodes} | {e.weight_version_max for e in episodes}
        assert versions == {iteration - 1}
    steps = [r for r in metrics.read(run.paths.metrics) if "update_step" in r]
    assert sum(step["trainer/episodes"] for step in steps) == 2 * TASKS * SIBLINGS
    assert run.paths.model_link.resolve().name == "version-000002"


def test_rollouts_and_llamafactory_take_turns_on_all_gpus(run):
    """README, command 1: torchrun with DeepSpeed ZeRO-1 on as many processes as there are GPUs."""
    before = memory()
    process = start(
        run, "--rl-phase", "both", "--no-final-eval", "--eval-interval", "1", "--max-iterations", "1"
    )
    finish(run, process)

    assert run.paths.model_link.resolve().name == "version-000001"
    (recipe,) = run.log.glob("llamafactory_data/iteration1/train.yaml")
    assert yaml.safe_load(recipe.read_text())["deepspeed"].endswith("zero1.json")
    (log,) = run.log.glob("runs/latest/logs/training-*.log")
    assert "deepspeed" in log.read_text().lower()
    records = metrics.read(run.paths.metrics)
    assert any(0 < record.get("update/loss", 0) < 100 for record in records)
    wait_until_free(run, process, before)


def test_a_killed_driver_leaves_nothing_on_the_gpus(run):
    before = memory()
    run.change(
        {"env_config.train_tasks_rollout_size": -1, "engine.max_num_seqs": 1, "env_config.server_size": 1}
    )
    process = start(run, "--rl-phase", "both", "--no-final-eval", "--eval-interval", "9")
    run.wait_for_episodes(process, 1)
    os.kill(process.pid, signal.SIGKILL)
    wait_until_free(run, process, before)


def test_an_engine_sleeps_while_the_trainer_has_its_gpu_and_wakes_updated(run):
    """`trainer.placement=hybrid` on one GPU."""
    before = memory()
    process = start(run, *STREAM, "pool.port=0", "trainer.placement=hybrid", on=gpus()[:1])
    finish(run, process)

    check_streamed(run)
    (log,) = run.log.glob("runs/latest/logs/trainer-*.log")
    assert "the window is closed" in log.read_text()
    wait_until_free(run, process, before)


def test_groups_stream_from_an_engine_that_another_machine_lends(run):
    """README, commands 6 and 7; where there is one GPU alone, engine and trainer share it."""
    before = memory()
    port = free_port()
    manager = f"http://127.0.0.1:{port}"
    flags = "--enforce-eager --max-model-len 256 --max-num-seqs 4 --kv-cache-memory-bytes 67108864"
    words = ["bash", str(RUN_SH.parent / "join_pool.sh"), "--manager", manager, "--name", "lent"]
    words += ["--model", str(run.model), "--gpus", gpus()[-1], "--log", str(run.home / "lent.log")]
    words += ["--capacity", "4", "--engine-args", f"{flags} --gpu-memory-utilization 0.3"]
    environ = {**os.environ, "TEST_MARK": str(run.home), "RL_AGENT_PYTHON": sys.executable}
    with (run.home / "lent.worker").open("w") as output:
        lent = subprocess.Popen(words, env=environ, stdout=output, stderr=output, start_new_session=True)

    process = start(run, *STREAM, f"pool.port={port}", "pool.local_engine=false", on=gpus()[:1])
    finish(run, process)
    lent.terminate()
    assert lent.wait(60) == 0, (run.home / "lent.worker").read_text()

    check_streamed(run)
    wait_until_free(run, process, before)
