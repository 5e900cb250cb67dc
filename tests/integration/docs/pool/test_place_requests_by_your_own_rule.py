"""docs/how-to/place-requests-by-your-own-rule.md, its classes in a short simulation and with a tiny model."""

import json

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.pool.client import ask
from tests.integration.docs.reader import Reader
from tests.unit.docs.documented_blocks import blocks

PAGE = "docs/how-to/place-requests-by-your-own-rule.md"


@pytest.fixture
def make(tmp_path):
    def made(instead: dict[str, str]) -> Reader:
        reader = Reader(PAGE, tmp_path, instead)
        reader.environment["COLUMNS"] = "150"  # which policy was played stands in one line
        (reader.checkout / "my_policies.py").write_text(blocks(reader.page, "python")[0])
        return reader

    return made


def test_the_simulator_plays_the_trace_with_and_without_the_class(make):
    reader = make({"hours=1": "hours=0.3 prompts=8 mean_tokens=500 longest=1024"})
    plain, mine = reader.commands("python -m rl_agent.cli what-if --trace")
    assert "policy least_work" in reader.types(plain)
    assert "policy my_policies:PrefixAffinity" in reader.types(mine)


def test_a_manager_places_by_the_class(make):
    port = free_port()
    reader = make({"manager policy": f"manager port={port} policy"})
    _, manager = reader.commands("bash scripts/run.sh")
    with reader.leaves_running(manager) as running:
        running.wait_for("http://127.0.0.1:", 60)
        status = ask(f"http://127.0.0.1:{port}", "/status", None)
    assert status["placement"] == {"policy": "my_policies:CheapestFirst", "fallbacks": 0, "fault": ""}


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_a_run_has_every_response_placed_by_the_class(make, small):
    words = "--data-path /home/user --log-path /home/user/exp1 --rl-phase rollout --rollout-split train-only"
    instead = {"run.sh …": f"run.sh {words} --max-iterations 1 {small.run(f'pool.port={free_port()}')}"}
    reader = make(instead)
    small.give_tasks(reader)
    run, _ = reader.commands("bash scripts/run.sh")
    reader.types(run, timeout_s=800)
    runs = reader.home / "exp1/runs/latest"
    plan = json.loads((runs / "plan.json").read_text())
    assert plan["config"]["pool"]["policy"] == "my_policies:CheapestFirst"
    assert "CheapestFirst" not in next(runs.glob("logs/manager-*.log")).read_text()  # which has its failures
