"""docs/how-to/train-on-many-nodes.md with processes of one machine as nodes, over loopback."""

import json
import re

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from rl_agent.served_model.verify import verify_served
from rl_agent.trainer.grpo.launch import progress_file
from tests.integration.docs.reader import Reader
from tests.integration.tiny_model import make_plan, make_tiny_model
from tests.integration.training.training import collect

PAGE = "docs/how-to/train-on-many-nodes.md"


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_two_nodes_train_and_publish_by_hand(tmp_path):
    plan = make_plan(tmp_path / "log", make_tiny_model(tmp_path / "base"), "trainer.peer_timeout_s=100")
    collect(plan, 3, 64)  # the first one here: it becomes version 1
    file = plan.paths.log_path / "plan.json"
    plan.write(file)
    reader = Reader(PAGE, tmp_path, {"PLAN": str(file), "10.0.0.1:29500": f"127.0.0.1:{free_port()}"})
    prepare, train, publish, verify, *_ = reader.commands("# on the master")

    reader.types(prepare)
    with reader.leaves_running(train.replace("--node-rank 0", "--node-rank 1")) as other:
        reader.types(train, timeout_s=300)
        other.ends_well(60)
    assert "weight_version=1" in reader.types(publish).split()
    assert "--version 3 " in verify
    reader.types(verify.replace("--version 3 ", "--version 1 "))
    verify_served(plan.paths, weight_version=1)


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_a_streaming_trainer_waits_by_hand_on_two_nodes_for_episodes(tmp_path):
    model = make_tiny_model(tmp_path / "base", hidden_size=128)
    words = ("trainer=grpo_cpu", "pool=elastic", "pool.port=0", "rollout.group_size=2")
    plan = make_plan(tmp_path / "log", model, *words)
    file = plan.paths.log_path / "plan.json"
    plan.write(file)
    reader = Reader(PAGE, tmp_path, {"PLAN": str(file), "10.0.0.1:29500": f"127.0.0.1:{free_port()}"})
    *_, manager, train = reader.commands("# on the master")

    with (
        reader.leaves_running(manager.removesuffix("&")),
        reader.leaves_running(train) as first,
        reader.leaves_running(train.replace("--node-rank 1", "--node-rank 0")) as zero,
    ):
        zero.wait_until(progress_file(plan).exists, 120)
        assert first.process.poll() is None


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(1500)
def test_two_of_four_nodes_train_over_the_named_interface(tmp_path, small):
    instead = {
        "--num-nodes 4 --rank-weights 1,1,1,1": "--num-nodes 2 --rank-weights 1,1",
        "interface=ib0": "interface=lo",
        "run.sh …": (
            "run.sh --data-path /home/user --log-path /shared/exp1 --rl-phase both --eval-interval 6"
            f" --max-iterations 1 {small.run()}"
        ),
    }
    reader = Reader(PAGE, tmp_path, instead)
    small.give_tasks(reader)
    start = reader.block("bash scripts/run.sh")
    paths = RunPaths(reader.shared / "exp1")

    worker = start.replace("--master", "--worker 1")
    worker = re.sub(r"engine\.port=\d+", f"engine.port={free_port()}", worker)
    with reader.leaves_running(worker) as other:
        reader.types(start, timeout_s=1200)
        other.ends_well(60)
    assert paths.model_link.resolve().name == "version-000001"
    logs = [path.read_text() for path in paths.log_path.glob("runs/latest/logs/**/training-*.log")]
    assert len(logs) == 2 and all("world size: 2," in text for text in logs)
    (decision,) = paths.log_path.glob("flags/*/1/1/prepared*/decision.json")
    nodes, master = json.loads(decision.read_text())["words"]
    assert nodes == "0,1" and master.startswith("127.0.0.1:")


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(1500)
def test_a_streaming_trainer_on_two_nodes_uses_the_engines_that_join(tmp_path, small):
    port = free_port()
    instead = {
        "trainer=grpo": "trainer=grpo_cpu",
        "rollout.group_size=8": "rollout.group_size=2",
        "--eval-interval 6": "--eval-interval 6 --max-iterations 1",
        "pool.host=0.0.0.0": f"pool.host=0.0.0.0 pool.port={port} {small.run()}",
    }
    reader = Reader(PAGE, tmp_path, instead)
    small.give_tasks(reader)
    reader.types(f"umask 077; openssl rand -hex 32 > {reader.shared}/pool.token")
    start = reader.block("run=(--data-path")
    join = (
        f"bash scripts/join_pool.sh --manager http://127.0.0.1:{port} --token-file {reader.shared}/pool.token"
        f" {small.worker}"
    )
    with (
        reader.leaves_running(start.replace("--master ", "--worker 1 ")) as other,
        reader.leaves_running(join),
    ):
        reader.types(start, timeout_s=1200)
        other.ends_well(60)
    paths = RunPaths(reader.shared / "exp1")
    assert paths.model_link.resolve().name == "version-000001"
    episodes = list(read_iteration(paths, "train", 1, TRAJECTORY))
    assert len(episodes) == 12 * 2
    steps = [record for record in metrics.read(paths.metrics) if "update_step" in record]
    assert sum(step["trainer/episodes"] for step in steps) == len(episodes)
