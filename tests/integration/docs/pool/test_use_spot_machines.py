"""docs/how-to/use-spot-machines.md on this machine's CPU, with a certificate of one's own, at a free port."""

import os
import signal

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.paths import RunPaths
from rl_agent.pool.client import ask
from rl_agent.rollout.trajectories.shard import read_shard
from tests.integration.docs.reader import Reader
from tests.support.certificate import make_certificate

PAGE = "docs/how-to/use-spot-machines.md"
pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1200)]


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def reader(tmp_path, small, port):
    instead = {
        "host=0.0.0.0": f"host=127.0.0.1 port={port}",
        "10.0.0.1:5000": f"127.0.0.1:{port}",
        "http://127.0.0.1:5000": f"http://127.0.0.1:{port}",
        "--model Qwen/Qwen3-1.7B --gpus 0,1": f"--tls-ca cert.pem {small.worker}",
        " --notice auto": "",  # this machine's own cloud would be asked
        "RL_AGENT_KEY=$(": "SSL_CERT_FILE=$PWD/cert.pem RL_AGENT_KEY=$(",
        "--debug-mode": f"--debug-mode --max-iterations 1 {small.served()}",
        "--watch 1": "--tls-ca cert.pem --watch 1",
        "--model model.pt": small.worker,
    }
    page_reader = Reader(PAGE, tmp_path, instead)
    small.give_tasks(page_reader)
    return page_reader


def test_a_machine_joins_by_tls_and_answers_a_run_until_it_is_taken_away(reader):
    make_certificate(reader.checkout)
    with reader.leaves_running(reader.block("head -c 24")) as manager:
        manager.wait_for("https://127.0.0.1:", 60)
        with (
            reader.leaves_running(reader.block("bash scripts/join_pool.sh")) as machine,
            reader.leaves_running(reader.block("python -m rl_agent.cli pool status")) as watch,
        ):
            watch.wait_until(lambda: machine.process.poll() is None and "  ready" in watch.printed(), 600)
            reader.types(reader.block("RL_AGENT_KEY="), timeout_s=300)
            watch.wait_for("completed 12  failed 0", 30)
            assert "spent " in watch.printed()  # by --price
            os.killpg(machine.process.pid, signal.SIGTERM)
            machine.ends_well(60)
    _, episodes = read_shard(RunPaths(reader.home / "exp1").shard("train", 1))
    assert sum(1 for _ in episodes) == 12


def test_a_trace_brings_a_machine_into_the_pool_and_ctrl_c_takes_it_away(reader, port):
    (reader.checkout / "trace.csv").write_text("time_s,change,how\n0,+1,\n40000,-1,notice\n")
    manager = f"http://127.0.0.1:{port}"

    def engines() -> list[dict]:
        return ask(manager, "/status", None)["engines"]

    with reader.leaves_running(f"python -m rl_agent.cli manager port={port}") as served:
        served.wait_for(manager, 60)
        with reader.leaves_running(reader.block("bash scripts/emulate_spot.sh")) as machines:
            machines.wait_until(lambda: [engine for engine in engines() if engine["state"] == "ready"], 600)
            os.killpg(machines.process.pid, signal.SIGINT)
            machines.process.wait(60)
        assert engines() == []
