"""docs/how-to/choose-how-weights-travel.md on this machine's CPU, with small models."""

import psutil
import pytest

from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths
from tests.integration.docs.reader import Reader

PAGE = "docs/how-to/choose-how-weights-travel.md"
pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1200)]


@pytest.fixture
def reader(tmp_path, small, taught):
    instead = {
        "--data-path data --log-path exp": "--data-path /home/user --log-path /home/user/exp1",
        "'weights.engine_gpus=[4,5,6,7]'": f"--max-iterations 2 {small.run()}",  # left out on a CPU
        "run.sh … trainer=grpo": f"run.sh {taught.run()} trainer=grpo",
        "10.0.0.1,10.1.0.1": "127.0.0.1,127.0.0.2",
    }
    page_reader = Reader(PAGE, tmp_path, instead)
    small.give_tasks(page_reader)
    return page_reader


def test_the_running_engine_takes_the_new_model_in_place(reader):
    reader.types(reader.block("bash scripts/run.sh --data-path data"), timeout_s=900)
    paths = RunPaths(reader.home / "exp1")
    keys = {"weights/pause_s", "weights/load_s", "weights/snapshot_s", "weights/bytes"}
    assert any(keys <= line.keys() for line in metrics.read(paths.metrics))
    spans = [span["name"] for span in metrics.read(paths.timeline)]
    assert (spans.count("weights_swap"), spans.count("engine_start")) == (2, 1)


def listens_at(address: str) -> bool:
    listening = (
        connection for connection in psutil.net_connections("tcp") if connection.status == psutil.CONN_LISTEN
    )
    return any(connection.laddr.ip == address for connection in listening)


def test_a_trainer_listens_at_a_second_address_that_it_names_and_publishes(reader):
    block = reader.block("bash scripts/run.sh … trainer=grpo pool=elastic weights.host")
    with reader.leaves_running(block) as run:
        run.wait_until(lambda: listens_at("127.0.0.2"), 600)
        run.ends_well(900)
    assert RunPaths(reader.home / "exp2").model_link.resolve().name == "version-000001"
