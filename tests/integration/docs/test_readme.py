"""The core commands of README.md on this machine's CPU: its nodes are processes of this machine."""

import os
import signal
from contextlib import ExitStack

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.integration.docs.reader import Reader
from tests.integration.real_run import ENGINE_ARGS

PAGE = "README.md"
GRPO = (
    "--data-path /home/user --log-path /home/user/exp2 --rl-phase both --eval-interval 6 \\\n    trainer=grpo"
    " model_config.base_model=Qwen/Qwen3-8B"
)
pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1800)]


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def reader(tmp_path, small, taught, port):
    instead = {
        GRPO: f"{taught.run()} trainer=grpo",
        "pool.host=0.0.0.0": f"pool.host=127.0.0.1 pool.port={port}",
        "http://HOST:5000": f"http://127.0.0.1:{port}",
        "--price 2.66": f"--price 2.66 --capacity 4 --engine-args '{ENGINE_ARGS.replace('256', '128')}'",
    }
    page_reader = Reader(PAGE, tmp_path, instead)
    small.give_tasks(page_reader)
    return page_reader


def test_the_whole_loop_then_more_trajectories_then_an_update_on_them(reader, small):
    paths = RunPaths(reader.home / "exp1")
    loop, rollout, update = reader.commands("# 1. The whole loop")
    reader.types(f"{loop} --max-iterations 1 {small.run()}", timeout_s=900)
    assert paths.model_link.resolve().name == "version-000001"
    reader.types(f"{rollout} --max-iterations 1 {small.run()}", timeout_s=600)
    assert paths.iterations("train") == [1, 2]
    reader.types(f"{update} {small.run()}", timeout_s=600)
    assert paths.model_link.resolve().name == "version-000002"


def test_two_nodes_and_one_that_joins_collect_and_train_together(reader, small):
    paths = RunPaths(reader.shared / "exp1")
    master, join = reader.commands("# 4. Two nodes")
    worker = master.replace("--master", "--worker 1")
    settings = small.served("trainer.deepspeed=zero1")
    with ExitStack() as nodes:
        for command in (worker, master):
            words = f"{command} --max-iterations 1 {settings} engine.port={free_port()}"
            node = nodes.enter_context(reader.leaves_running(words))
        helper = nodes.enter_context(reader.leaves_running(f"{join} engine.port={free_port()}"))
        node.ends_well(1500)
        helper.ends_well(120)  # as the run ends
    keys = [trajectory.key for trajectory in read_iteration(paths, "train", 1, TRAJECTORY)]
    assert len(keys) == len(set(keys)) == 12
    assert paths.model_link.resolve().name == "version-000001"


def test_a_run_trains_on_what_another_machine_generates(reader):
    run, machine = reader.commands("# 6. GRPO")
    reader.types("head -c 24 /dev/urandom | base64 > pool.token && chmod 600 pool.token")
    with reader.leaves_running(machine) as lent:
        reader.types(run, timeout_s=1200)
        os.killpg(lent.process.pid, signal.SIGTERM)
        lent.ends_well(60)
    paths = RunPaths(reader.home / "exp2")
    assert paths.model_link.resolve().name == "version-000001"
    assert len(list(read_iteration(paths, "train", 1, TRAJECTORY))) == 16 * 4
