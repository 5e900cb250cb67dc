"""docs/how-to/train-over-a-pool.md on this machine's CPU, with small models at free ports."""

import os
import signal

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.monitor.metrics import read
from rl_agent.monitor.report import by_iteration
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.shard import read_shard
from tests.integration.docs.reader import Reader
from tests.integration.real_run import ENGINE_ARGS

PAGE = "docs/how-to/train-over-a-pool.md"
pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1500)]


@pytest.fixture
def reader(tmp_path, small, taught):
    port = free_port()
    words = f"--max-iterations 1 {small.run(f'pool.port={port}')}"
    rollout = f"--data-path /home/user --log-path /home/user/exp1 --rl-phase rollout {words}"
    alone = f"run.sh {rollout} --rollout-split train-only pool.local_engine=false"
    instead = {
        "--eval-interval 5": f"--eval-interval 5 {words}",
        "run.sh … pool=elastic": f"{alone} pool=elastic",  # the machine that joins does all the work
        "run.sh … trainer=grpo pool=elastic": f"run.sh {taught.run()} trainer=grpo pool=elastic",
        "10.0.0.1:5000": f"127.0.0.1:{port}",
        "--gpus 0,1": f"--capacity 4 --engine-args '{ENGINE_ARGS}'",
    }
    page_reader = Reader(PAGE, tmp_path, instead)
    page_reader.port = port
    small.give_tasks(page_reader)
    return page_reader


def test_a_run_has_its_own_manager_whose_engine_takes_the_updated_model(reader):
    paths = RunPaths(reader.home / "exp1")
    status = reader.block("python -m rl_agent.cli pool status")
    with reader.leaves_running(reader.block("bash scripts/run.sh --data-path")) as run:
        run.wait_until(lambda: list(paths.log_path.glob("runs/latest/pool.url")), 120)
        run.wait_until(lambda: "  ready" in reader.types(status), 600)
        run.ends_well(1200)
    assert len(list(paths.log_path.glob("runs/latest/pool-*.sqlite"))) == 1
    assert paths.model_link.resolve().name == "version-000001"


def test_a_machine_with_only_address_and_token_does_the_work_of_a_run(reader):
    token, run = reader.commands("head -c 24")
    reader.types(token)
    join = reader.block("bash scripts/join_pool.sh --manager http://10.0.0.1:5000 --token")
    with reader.leaves_running(join) as machine:
        reader.types(run, timeout_s=900)
        assert machine.process.poll() is None  # it continues after the run
        os.killpg(machine.process.pid, signal.SIGTERM)
        machine.ends_well(60)
    _, episodes = read_shard(RunPaths(reader.home / "exp1").shard("train", 1))
    assert sum(1 for _ in episodes) == 12


def test_groups_that_teach_nothing_are_left_out_and_others_sampled(reader):
    reader.types(reader.block("bash scripts/run.sh … trainer=grpo pool=elastic trainer.loss"), timeout_s=900)
    paths = RunPaths(reader.home / "exp2")
    numbers = by_iteration(read(paths.metrics))[1]
    assert numbers["train/uninformative_groups"] > 0 and numbers["train/resampled_groups"] > 0
    assert paths.model_link.resolve().name == "version-000001"


def test_an_adapter_is_trained_and_the_merged_model_published(reader):
    reader.types(reader.block("bash scripts/run.sh … trainer=grpo pool=elastic trainer.lora"), timeout_s=900)
    model = RunPaths(reader.home / "exp2").model_link.resolve()
    assert model.name == "version-000001"
    assert not list(model.glob("adapter*"))


def test_runs_that_train_adapters_share_the_engine_of_a_machine(reader):
    second = str(free_port())
    reader.replace("10.0.0.1:5001", f"127.0.0.1:{second}")
    reader.replace("pool.port=5001", f"pool.port={second}")
    reader.replace("pool.port=5000", f"pool.port={reader.port}")
    reader.replace("--capacity 256 --engine-args '--max-lora-rank 16 --max-num-seqs 256'", "--price 1")
    reader.replace(ENGINE_ARGS, f"{ENGINE_ARGS} --max-lora-rank 16")
    reader.types(reader.commands("head -c 24")[0])
    engine = reader.block("bash scripts/join_pool.sh --manager http://10.0.0.1:5000 --manager")
    first, other = reader.commands("bash scripts/run.sh … trainer=grpo pool=elastic pool.local_engine")
    with (
        reader.leaves_running(engine) as machine,
        reader.leaves_running(first) as run,
        reader.leaves_running(other.replace("/exp2", "/exp3")) as other_run,
    ):
        machine.wait_until(lambda: run.process.poll() is not None, 500)
        for each in (run, other_run):
            each.ends_well(500)
        os.killpg(machine.process.pid, signal.SIGTERM)
        machine.ends_well(60)
    printed = machine.printed()
    assert printed.count("weight version 1 is served") == 2, printed
    for name in ("exp2", "exp3"):
        assert RunPaths(reader.home / name).model_link.resolve().name == "version-000001"
