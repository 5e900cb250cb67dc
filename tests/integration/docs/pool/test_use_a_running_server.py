"""docs/how-to/use-a-running-server.md on this machine's CPU, with a tiny model at a free port."""

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.http import client as http_client
from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths
from tests.integration.docs.reader import Reader
from tests.integration.real_run import ENGINE_ARGS

PAGE = "docs/how-to/use-a-running-server.md"
START_TIMEOUT_S = 600
pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1200)]


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def reader(tmp_path, port, small):
    instead = {
        "vllm serve": "python -m rl_agent.engine.vllm_serve",  # as the page says of a CPU
        "MODEL": str(small.model),
        "--max-model-len 32768": ENGINE_ARGS,
        "8999": str(port),
        "--debug-mode": f"--debug-mode --max-iterations 1 {small.served()} engine.port={port}",
    }
    page_reader = Reader(PAGE, tmp_path, instead)
    small.give_tasks(page_reader)
    return page_reader


def is_ready(port: int) -> bool:
    try:
        http_client.request(f"http://127.0.0.1:{port}/health", timeout_s=2)
    except OSError:
        return False
    return True


def test_a_run_uses_the_server_and_leaves_it_running(reader, port, small):
    paths = RunPaths(reader.home / "exp1")
    paths.log_path.mkdir()
    paths.model_link.symlink_to(small.model)  # a model that its user put there is version 0
    with reader.leaves_running(reader.block("vllm serve")) as server:
        server.wait_until(lambda: is_ready(port), START_TIMEOUT_S)
        reader.types(reader.block("bash scripts/run.sh"), timeout_s=300)
        assert is_ready(port)
    assert len(paths.shard("train", 1).read_text().splitlines()) == 1 + 12  # a header, then episodes


def test_a_server_that_was_started_for_it_takes_the_updated_weights(reader, port):
    rollout = reader.block("bash scripts/run.sh").rstrip() + " weights=inplace"
    both = rollout.replace("--rl-phase rollout", "--rl-phase both --eval-interval 2", 1)
    both = both.replace("--rollout-split train-only", "", 1)
    start = reader.block("VLLM_SERVER_DEV_MODE=1 vllm serve").rstrip()
    with reader.leaves_running(f"{start} {ENGINE_ARGS}") as server:
        server.wait_until(lambda: is_ready(port), START_TIMEOUT_S)
        reader.types(both, timeout_s=600)
        reader.types(rollout, timeout_s=300)
    spans = [span["name"] for span in metrics.read(RunPaths(reader.home / "exp1").timeline)]
    assert spans.count("weights_swap") == 1 and "engine_start" not in spans
