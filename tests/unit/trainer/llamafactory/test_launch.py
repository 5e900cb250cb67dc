"""The command that trains on one node or on several, and its environment."""

import sys
from pathlib import Path

import pytest

from rl_agent.errors import UsageError
from rl_agent.trainer.llamafactory.launch import (
    Rendezvous,
    interface_variables,
    rendezvous_of,
    training_command,
    training_environment,
)
from rl_agent.trainer.llamafactory.render import TrainingSetup
from tests.integration.tiny_model import make_plan

ONE_CPU = TrainingSetup(uses_cpu=True, bf16=False, processes=1, nodes=1, deepspeed=None)
EIGHT_GPUS = TrainingSetup(uses_cpu=False, bf16=True, processes=8, nodes=1, deepspeed=Path("/ds.json"))
TWO_NODES = TrainingSetup(uses_cpu=False, bf16=True, processes=8, nodes=2, deepspeed=None)
ONE_GPU = TrainingSetup(uses_cpu=False, bf16=True, processes=1, nodes=1, deepspeed=None)
SECOND = Rendezvous(1, "10.0.0.1", 29600)


@pytest.fixture
def plan(tmp_path):
    return make_plan(tmp_path / "a b", tmp_path / "base", "trainer.peer_timeout_s=90")


@pytest.fixture
def words(plan):
    """The command of every process."""
    yaml = plan.paths.update_dir(3) / "train.yaml"
    return ["-m", "rl_agent.trainer.llamafactory.worker", str(yaml), str(plan.paths.metrics), "3"]


def test_one_process_runs_without_torchrun(plan, words):
    assert training_command(plan, 3, ONE_CPU, Rendezvous()) == [sys.executable, *words]


def test_several_processes_keep_a_path_with_blanks_in_one_word(plan, words):
    command = training_command(plan, 3, EIGHT_GPUS, Rendezvous())
    assert command[1:] == [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "8", "--max-restarts", "0"),
        *words,
    ]


def test_nodes_meet_at_the_master_within_the_deadline(plan, words):
    command = training_command(plan, 3, TWO_NODES, SECOND)
    assert command[1:] == [
        *("-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", "1"),
        *("--rdzv-backend", "static", "--rdzv-conf", "timeout=90"),
        *("--master-addr", "10.0.0.1", "--master-port", "29600"),
        *("--nproc-per-node", "8", "--max-restarts", "0"),
        *words,
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((1, 0, None), Rendezvous()),
        ((1, 0, "10.0.0.1:29600"), Rendezvous()),
        ((2, 1, "10.0.0.1:29600"), SECOND),
        ((2, 0, "[fd00::1]:29600"), Rendezvous(0, "[fd00::1]", 29600)),
    ],
)
def test_the_options_name_a_place(given, expected):
    assert rendezvous_of(*given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((2, 2, "h:1"), "--node-rank 2: expected 0 to 1 with --nodes 2"),
        ((2, -1, "h:1"), "--node-rank -1: expected 0 to 1"),
        ((2, 0, None), "--master None: expected HOST:PORT"),
        ((2, 0, "10.0.0.1"), r"--master 10\.0\.0\.1: expected HOST:PORT"),
        ((2, 0, ":29600"), "--master :29600: expected HOST:PORT"),
    ],
)
def test_a_place_that_cannot_be_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        rendezvous_of(*given)


def test_the_environment_is_the_callers_with_what_training_needs(tmp_path):
    environment = training_environment(ONE_CPU, {"PATH": "/usr/bin", "HF_HOME": "/hub"}, tmp_path)
    assert environment["HF_HOME"] == "/hub"
    assert environment["PATH"].split(":") == [str(Path(sys.executable).parent), "/usr/bin"]
    assert environment["DISABLE_VERSION_CHECK"] == "1"
    assert environment["DEEPSPEED_LOG_LEVEL"] == "WARNING"
    assert environment["HF_DATASETS_CACHE"] == str(tmp_path)
    assert int(environment["OMP_NUM_THREADS"]) >= 1
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert "WANDB_DISABLED" not in environment


def test_one_process_sees_one_of_the_callers_gpus(tmp_path):
    environment = training_environment(ONE_GPU, {"CUDA_VISIBLE_DEVICES": "3,4"}, tmp_path)
    assert environment["CUDA_VISIBLE_DEVICES"] == "3"
    assert "CUDA_VISIBLE_DEVICES" not in training_environment(EIGHT_GPUS, {}, tmp_path)
    assert "OMP_NUM_THREADS" not in training_environment(EIGHT_GPUS, {}, tmp_path)


def test_a_configured_interface_carries_the_training_unless_overridden():
    environment = interface_variables("ib0", {"NCCL_SOCKET_IFNAME": "eth1"})
    assert environment["GLOO_SOCKET_IFNAME"] == "ib0"
    assert environment["NCCL_SOCKET_IFNAME"] == "eth1"
