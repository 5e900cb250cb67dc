"""The OpenR1 examples run to their end on this machine's GPUs, shortened and with a tiny model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.monitor import metrics
from rl_agent.paths import PROJECT_ROOT, RunPaths
from tests.gpu.test_loops import LIMIT_S, gpus
from tests.integration.tiny_model import make_tiny_model
from tests.unit.tasks.test_openr1 import row, write

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1500)]

EXAMPLES = PROJECT_ROOT / "scripts" / "examples"
GROUPS, SIBLINGS = 4, 8


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that takes long prompts, and tasks made by prepare_openr1.sh."""
    folder = tmp_path_factory.mktemp("openr1")
    config = make_tiny_model(folder / "model", hidden_size=128) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 16384}))
    write(folder / "source" / "part.parquet", [row(number) for number in range(40)])
    run(
        "prepare_openr1.sh", str(folder / "tasks"), "--source", str(folder / "source"), log=folder / "prepare"
    )
    return folder


def environment(on: list[str]) -> dict[str, str]:
    return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(on), "RL_AGENT_PYTHON": sys.executable,
            "WANDB_MODE": "disabled"}  # fmt: skip


def run(example: str, *words: str, log: Path, on: list[str] | None = None) -> None:
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", str(EXAMPLES / example), *words],
            env=environment(on or gpus()),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            assert process.wait(LIMIT_S) == 0, log.read_text()[-6000:]
        finally:
            process.terminate()  # what a failed test started ends in its own time
            process.wait(90)


def shortened(home: Path, log_path: Path, on: list[str]) -> list[str]:
    """One iteration of four groups with responses of 64 tokens; all else is what the example says."""
    return [
        "--data-path", str(home / "tasks"), "--log-path", str(log_path), "--max-iterations", "1",
        f"model_config.base_model={home / 'model'}", "policy_config.max_new_tokens=64",
        f"env_config.train_tasks_rollout_size={GROUPS}", "env_config.test_tasks_rollout_size=2",
        f"engine.tensor_parallel_size={min(2, len(on))}", "engine.enforce_eager=true",
        "engine.max_model_len=2048",
        f"trainer.nproc_per_node={min(2, len(on))}", "trainer.parallel.use_liger_kernel=false",
    ]  # fmt: skip


def check(log_path: Path) -> None:
    paths = RunPaths(log_path)
    assert paths.model_link.resolve().name == "version-000001"
    steps = [record for record in metrics.read(paths.metrics) if "update_step" in record]
    assert sum(step["trainer/episodes"] for step in steps) == GROUPS * SIBLINGS


@pytest.mark.parametrize("example", ["openr1_1.7b_mini.sh", "openr1_1.7b_sync.sh"])
def test_an_example_on_one_machine_runs_to_its_end(home, tmp_path, example):
    run(example, *shortened(home, tmp_path / "log", gpus()), "pool.port=0", log=tmp_path / "output")

    check(tmp_path / "log")


def test_the_streamed_example_is_served_by_the_worker_that_joins_it(home, tmp_path):
    port = free_port()
    words = ["bash", str(EXAMPLES / "openr1_worker.sh"), "1.7b", "--manager", f"http://127.0.0.1:{port}"]
    words += ["--gpus", gpus()[-1], "--model", str(home / "model"), "--log", str(tmp_path / "vllm.log")]
    with (tmp_path / "worker").open("w") as output:
        worker = subprocess.Popen(
            words, env=environment(gpus()), stdout=output, stderr=output, start_new_session=True
        )
    trains_on = gpus()[:1]
    try:
        run(
            "openr1_1.7b_streamed.sh", *shortened(home, tmp_path / "log", trains_on), f"pool.port={port}",
            "pool.local_engine=false", "trainer.placement=disaggregated",
            log=tmp_path / "output", on=trains_on,
        )  # fmt: skip
    finally:
        worker.terminate()
        status = worker.wait(90)

    assert status == 0, (tmp_path / "worker").read_text()[-4000:]
    check(tmp_path / "log")
