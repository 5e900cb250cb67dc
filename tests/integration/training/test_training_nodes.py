"""Two node ranks on this machine train one model, with the real torchrun, gloo and DeepSpeed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.config.plan import Plan
from rl_agent.monitor import metrics
from rl_agent.paths import PROJECT_ROOT
from rl_agent.served_model.verify import verify_served
from rl_agent.served_model.versions import read_record
from rl_agent.trainer.llamafactory.inputs import read_summary, write_summary
from rl_agent.trainer.llamafactory.optimizer.checkpoints import find_checkpoint
from tests.integration.tiny_model import make_plan, make_tiny_model
from tests.integration.training.training import assert_serves, collect, run_verb, tensors_of

pytestmark = [pytest.mark.extended, pytest.mark.timeout(400)]

TRAIN_TIMEOUT_S = 150
SETTINGS = (
    "trainer.per_device_train_batch_size=8",
    "trainer.learning_rate=0.001",
    "trainer.warmup_steps=0",
    "trainer.num_train_epochs=1",
    "trainer.peer_timeout_s=100",
)

Start = Callable[..., list[subprocess.Popen]]


@pytest.fixture
def start_training() -> Iterator[Start]:
    """Starts the verb `train` once for each node; at the end nothing of it is left."""
    nodes: list[subprocess.Popen] = []

    def start(plan: Plan, count: int, iteration: int = 1) -> list[subprocess.Popen]:
        plan_file = plan.paths.log_path / "plan.json"
        master = f"127.0.0.1:{free_port()}"
        for rank in range(count):
            words = ["train", "--plan", plan_file, "--iteration", iteration]
            words += ["--nodes", count, "--node-rank", rank, "--master", master]
            command = [sys.executable, "-m", "rl_agent.cli", *map(str, words)]
            with log_of(plan, rank).open("wb") as log:
                nodes.append(
                    subprocess.Popen(
                        command, cwd=PROJECT_ROOT, stdout=log, stderr=log, start_new_session=True
                    )
                )
        return nodes[-count:]

    yield start
    for node in nodes:
        if node.poll() is None:
            os.killpg(node.pid, signal.SIGKILL)
            node.wait()


def log_of(plan: Plan, rank: int) -> Path:
    return plan.paths.log_path / f"node-{rank}.log"


def update(plan: Plan, nodes: int, start_training: Start, iteration: int = 1) -> str:
    """Prepare an iteration, train it to its end and publish it; returns what the preparation said."""
    prepared = prepare(plan, nodes, iteration)
    for rank, node in enumerate(start_training(plan, nodes, iteration)):
        assert node.wait(TRAIN_TIMEOUT_S) == 0, log_of(plan, rank).read_text()[-3000:]
    run_verb("publish", plan, iteration)
    return prepared


def prepare(plan: Plan, nodes: int, iteration: int = 1) -> str:
    """Prepare, and return the lines for the person who watches."""
    plan_file = plan.paths.log_path / "plan.json"
    plan.write(plan_file)
    words = ["--plan", str(plan_file), "--iteration", str(iteration), "--nodes", str(nodes)]
    done = subprocess.run(
        [sys.executable, "-m", "rl_agent.cli", "prepare-update", *words],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stderr


def recorded_steps(plan: Plan) -> list[int]:
    return [record["update_step"] for record in metrics.read(plan.paths.metrics) if "update_step" in record]


def recorded(plan: Plan, name: str) -> list[float]:
    """A number of each optimizer step."""
    key = f"update_step/{name}"
    return [record[key] for record in metrics.read(plan.paths.metrics) if key in record]


@pytest.mark.parametrize("stage", ["zero1", "zero3"])
def test_two_nodes_train_as_one_with_twice_the_accumulation(tmp_path, start_training, stage):
    base = make_tiny_model(tmp_path / "base")
    alone = make_plan(tmp_path / "one", base, *SETTINGS, "trainer.gradient_accumulation_steps=2")
    zero = make_plan(tmp_path / "two", base, *SETTINGS, f"trainer.deepspeed={stage}")
    for plan, nodes in ((alone, 1), (zero, 2)):
        collect(plan, 1, 64)
        update(plan, nodes, start_training)

    # 64 examples, 16 a step, in both.
    losses = recorded(alone, "loss")
    assert len(losses) == 4
    assert recorded(zero, "loss") == pytest.approx(losses, rel=1e-5)
    assert recorded(zero, "grad_norm") == pytest.approx(recorded(alone, "grad_norm"), rel=1e-3)
    verify_served(zero.paths, weight_version=1)
    first, second = (plan.paths.version_dir(1) for plan in (alone, zero))
    assert_serves(second, base)
    expected, actual = tensors_of(first), tensors_of(second)
    assert expected.keys() == actual.keys()
    assert max(float(abs(expected[name] - actual[name]).max()) for name in expected) < 2e-4


def test_an_optimizer_in_shards_goes_on_when_the_number_of_nodes_changes(tmp_path, start_training):
    """Two nodes, again two, then one: the moments stay, the shards of the third update are converted."""
    settings = (*SETTINGS, "trainer.deepspeed=zero1", "trainer.max_steps=3")
    plan = make_plan(tmp_path / "log", make_tiny_model(tmp_path / "base"), *settings)
    collect(plan, 1, 64)
    update(plan, 2, start_training)
    assert shards_of(plan, 1) == ["global_step3/rank_0", "global_step3/rank_1"]
    lines = [update(plan, 2, start_training, iteration=2), update(plan, 1, start_training, iteration=3)]

    assert "converting" not in lines[0]
    assert "the number of processes changed from 2 to 1: converting the optimizer's shards" in lines[1]
    assert shards_of(plan, 3) == ["global_step9/rank_0"]
    assert optimizer_steps(plan, 3) == {9}
    assert recorded_steps(plan) == list(range(1, 10))
    losses = recorded(plan, "loss")
    assert losses[8] < losses[6] < losses[3] < losses[0]
    record = read_record(plan.paths.version_dir(3))
    assert record is not None
    assert record.update_steps == 9


def test_an_interrupted_training_goes_on_with_fewer_nodes(tmp_path, start_training):
    settings = (*SETTINGS, "trainer.deepspeed=zero1", "trainer.save_steps=2")
    base = make_tiny_model(tmp_path / "base")
    plan = make_plan(tmp_path / "log", base, *settings, "trainer.num_train_epochs=500")
    collect(plan, 1, 64)
    prepare(plan, 2)
    nodes = start_training(plan, 2)
    wait_for_steps(plan, nodes, 5)
    for node in nodes:
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()
    saved = find_checkpoint(plan.paths.training_dir(1))
    assert saved is not None
    done = int(saved.name.removeprefix("checkpoint-"))
    losses = recorded(plan, "loss")

    short = make_plan(tmp_path / "log", base, *settings, f"trainer.max_steps={done + 4}")
    shorten(short, done + 2)  # of the two nodes' steps; the one node then has twice as many
    lines = update(short, 1, start_training)

    at = round(done * (done + 4) / (done + 2))
    assert f"the interrupted training continues after step {at} of {done + 4}" in lines
    assert recorded_steps(plan)[len(losses) :] == list(range(at + 1, done + 5))
    assert recorded(plan, "loss")[len(losses)] < losses[0] - 0.2
    assert optimizer_steps(plan, 1) == {done + 4 + done - at}
    verify_served(plan.paths, weight_version=1)


def shorten(plan: Plan, steps: int) -> None:
    """Let the interrupted training have been prepared for that many steps."""
    folder = plan.paths.update_dir(1)
    write_summary(folder, replace(read_summary(folder), new_steps=steps))


def shards_of(plan: Plan, version: int) -> list[str]:
    """DeepSpeed's shards of a version's optimizer, as STEP/rank_R."""
    shards = (plan.paths.version_dir(version) / "trainer").glob("global_step*/*_optim_states.pt")
    return sorted(f"{path.parent.name}/{'_'.join(path.name.split('_')[2:4])}" for path in shards)


def optimizer_steps(plan: Plan, version: int) -> set[int]:
    """Return the steps that the moments of one process have counted."""
    import torch

    [shard, *_] = (plan.paths.version_dir(version) / "trainer").glob("global_step*/*_optim_states.pt")
    state = torch.load(shard, weights_only=False)["optimizer_state_dict"]["base_optimizer_state"]
    return {int(entry["step"]) for entry in state["state"].values()}


@pytest.mark.parametrize("victim", [1, 0], ids=["a worker", "the master"])
def test_the_loss_of_a_node_ends_the_other_within_seconds(tmp_path, start_training, victim):
    base = make_tiny_model(tmp_path / "base")
    plan = make_plan(tmp_path / "log", base, *SETTINGS, "trainer.max_steps=100000")
    collect(plan, 1, 64)
    prepare(plan, 2)
    nodes = start_training(plan, 2)
    wait_for_steps(plan, nodes, 3)
    processes = [child for node in nodes for child in psutil.Process(node.pid).children(recursive=True)]

    os.killpg(nodes[victim].pid, signal.SIGKILL)

    other = nodes[1 - victim]
    assert other.wait(15) == 1, log_of(plan, 1 - victim).read_text()[-3000:]
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []
    assert recorded(plan, "loss")


def wait_for_steps(plan: Plan, nodes: list[subprocess.Popen], count: int) -> None:
    """Wait until the training is under way on all nodes."""
    deadline = time.monotonic() + TRAIN_TIMEOUT_S
    while len(recorded(plan, "loss")) < count:
        assert time.monotonic() < deadline, "no optimizer step"
        assert all(node.poll() is None for node in nodes), log_of(plan, 0).read_text()[-3000:]
        time.sleep(0.2)
