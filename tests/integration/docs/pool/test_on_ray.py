"""docs/how-to/on-ray.md from the installation to a trained version, on a cluster of this machine alone.

Ray is told of GPUs that are not there; the engines and the trainer are real, small, and on the CPU.
"""

import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.monitor.metrics import read
from rl_agent.monitor.report import by_iteration
from rl_agent.paths import RunPaths
from tests.integration.docs.reader import Reader, missing_lines
from tests.integration.real_run import ENGINE_ARGS
from tests.unit.docs.documented_blocks import blocks

PAGE = "docs/how-to/on-ray.md"
TASKS, SIBLINGS = 16, 8
pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1800)]


@pytest.fixture
def reader(tmp_path, taught) -> Iterator[Reader]:
    pool, ray, dashboard = free_port(), free_port(), free_port()
    small = (
        f"--max-iterations 1 +experiment=quickstart_grpo env_config.train_tasks_rollout_size={TASKS}"
        " trainer.mini_batches=2 trainer.loss.advantage=grpo page.port=off"
    )
    head = (
        f"~/ray/bin/ray start --head --block --num-gpus 8 --num-cpus 64 --port {ray}"
        f" --dashboard-port {dashboard} --node-ip-address 127.0.0.1"
    )
    instead = {
        "~/ray/bin/ray start --head --num-gpus 8": f"env -u CUDA_VISIBLE_DEVICES {head}",
        "host=0.0.0.0 token_file": f"port={pool} token_file",
        "model=Qwen/Qwen3-8B \\\n    'scale": f"model={taught.model} 'scale",
        "--engines-manager http://10.0.0.1:5000": f"--manager http://127.0.0.1:{pool}",
        "HOST:8265": f"127.0.0.1:{dashboard}",
        "--data-path /shared/data": f"--data-path {taught.data} {small}",
        "pool.host=0.0.0.0": "pool.port=0",
        "base_model=Qwen/Qwen3-8B": f"base_model={taught.model}",
        "max_engines: 4": "max_engines: 1",
    }
    page_reader = Reader(PAGE, tmp_path, instead)
    (page_reader.shared / "rl-agent").symlink_to(page_reader.checkout)
    (settings,) = (text for text in blocks(page_reader.page, "yaml") if text.startswith("start:"))
    for written, typed in {
        "/shared": str(page_reader.shared),
        "HOST:8265": f"127.0.0.1:{dashboard}",
        "--drain-s 40": f"--capacity 4 --engine-args '{ENGINE_ARGS}' --drain-s 40",
    }.items():
        settings = settings.replace(written, typed)
    (page_reader.checkout / "ray.yaml").write_text(settings)
    folder = tempfile.mkdtemp(prefix="ray")  # the paths of Ray's sockets have to be short
    page_reader.environment |= {
        "RAY_TMPDIR": folder,
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
    }
    yield page_reader
    shutil.rmtree(folder, ignore_errors=True)


def test_jobs_come_to_a_pool_and_a_submitted_run_trains_with_them(reader):
    install, head = reader.commands("python3 -m venv ~/ray")
    reader.types(install, timeout_s=600)
    with reader.leaves_running(head) as cluster:
        cluster.wait_for("Ray runtime started", 120)
        tokens, manager = reader.commands("for name in pool admin")
        reader.types(tokens)
        check_pool(reader, manager)
        check_run(reader)


def check_pool(reader: Reader, manager: str) -> None:
    first = reader.block("python -m rl_agent.cli pool scale --provider command --engines-manager")
    with reader.leaves_running(manager) as pool:
        pool.wait_for("http://127.0.0.1:", 60)
        with reader.leaves_running(first) as scale:
            scale.wait_for("(1 in the pool): 1 wanted", 600)
            promised = blocks(reader.page, "text")[0].replace("rl-02743d0c", "…")
            assert missing_lines(promised, scale.printed()) == []
            os.killpg(scale.process.pid, signal.SIGINT)  # Ctrl+C
            assert "no machine is left" in scale.ends_well(240)


def check_run(reader: Reader) -> None:
    follows_the_run = reader.block("python -m rl_agent.cli pool scale --provider command --manager-file")
    with reader.leaves_running(follows_the_run) as scale:
        submitted = reader.types(reader.block("~/ray/bin/ray job submit"), timeout_s=120)
        number = re.findall(r"raysubmit_\w+", submitted)[0]
        assert end_of_job(reader, number) == "succeeded", scale.printed()[-2000:]
        scale.wait_for("its run is over", 120)
        os.killpg(scale.process.pid, signal.SIGINT)
        assert "no machine is left" in scale.ends_well(240)
    paths = RunPaths(reader.shared / "exp1")
    assert by_iteration(read(paths.metrics))[1]["train/episodes"] == TASKS * SIBLINGS
    assert paths.model_link.resolve().name == "version-000001"


def end_of_job(reader: Reader, number: str) -> str:
    """Look at a job now and then, until it has ended; returns how."""
    deadline = time.monotonic() + 900
    while True:
        status = reader.types(f"~/ray/bin/ray job status {number}", timeout_s=120)
        for end in ("succeeded", "failed", "stopped"):
            if end in status:
                return end
        assert time.monotonic() < deadline, reader.types(f"~/ray/bin/ray job logs {number}")[-4000:]
        time.sleep(2)
