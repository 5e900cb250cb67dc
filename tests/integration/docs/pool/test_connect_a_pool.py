"""docs/how-to/connect-a-pool.md on one machine: 127.0.0.1 and a free port in place of 10.77.0.1:5077."""

import json
import subprocess
import time

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from tests.integration.docs.reader import Reader

PAGE = "docs/how-to/connect-a-pool.md"


@pytest.fixture
def reader(tmp_path, small):
    port = free_port()
    instead = {
        "10.77.0.1": "127.0.0.1",
        "5077": str(port),
        "--model Qwen/Qwen3-1.7B": small.worker,
        "run.sh …": (
            "run.sh --data-path /home/user --log-path /home/user/exp1 --rl-phase rollout"
            " --rollout-split train-only --max-iterations 1 " + small.run(f"pool.port={port}")
        ),
    }
    page_reader = Reader(PAGE, tmp_path, instead)
    small.give_tasks(page_reader)
    return page_reader


def test_certificate_and_token_together_give_access_to_the_pool(reader):
    health, status = reader.commands("curl --cacert")
    with reader.leaves_running(reader.block("openssl req")) as manager:
        manager.wait_for("https://127.0.0.1:", 60)
        reader.types(health)
        assert json.loads(reader.types(status))["requests"]["submitted"] == 0
        url = status.split()[-1]
        code = "curl -s -o /dev/null -w '%{http_code}' --cacert cert.pem"
        assert reader.types(f"{code} {url}") == "401"
        refused = subprocess.run(["curl", "-s", url], capture_output=True)
        assert refused.returncode == 60  # curl's "certificate cannot be authenticated"


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_a_machine_behind_nat_answers_through_its_tunnel_and_leaves(reader):
    _, status = reader.commands("curl --cacert")
    with reader.leaves_running(reader.block("openssl req")) as manager:
        manager.wait_for("https://127.0.0.1:", 60)
        with reader.leaves_running(reader.block("bash scripts/join_pool.sh")) as worker:

            def engines() -> list[dict]:
                time.sleep(1)
                return json.loads(reader.types(status))["engines"]

            worker.wait_until(lambda: [each for each in engines() if each["state"] == "ready"], 600)
            (engine,) = engines()
            assert engine["name"] == "behind-nat"
            output = reader.types(
                status.replace("/status", "/v1/completions -H 'Content-Type: application/json'")
                + """ -d '{"prompt": "1 + 1 =", "max_tokens": 4}'"""
            )
            assert json.loads(output)["choices"]
        assert engines() == []


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_a_run_has_its_own_manager_with_the_certificate(reader):
    certificate = reader.commands("openssl req")[:-1]
    reader.types("\n".join(certificate))
    reader.types(reader.block("bash scripts/run.sh"), timeout_s=800)
    log = next(reader.home.glob("exp1/runs/latest/logs/manager-*.log")).read_text()
    assert "https://127.0.0.1:" in log
