"""The examples compose, pass the plan's checks, and say what the reference experiments say."""

import subprocess
from typing import Any

import pytest
import yaml

from rl_agent.paths import PROJECT_ROOT
from tests.support.tiny_chat import save_tiny_model_folder

EXAMPLES = PROJECT_ROOT / "scripts" / "examples"
GPUS = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
WORKER = "openr1_worker.sh"

SHARED = {
    "rollout.group_size": 8,
    "policy_config.temperature": 1.0,
    "policy_config.top_p": 1.0,
    "policy_config.max_new_tokens": 14336,
    "engine.max_model_len": 512 + 14336,
    "engine.tensor_parallel_size": 2,
    "engine.gpu_memory_utilization": 0.6,
    "trainer.mini_batches": 1,
    "trainer.loss.advantage": "grpo",
    "trainer.loss.normalization": "token_mean",
    "trainer.loss.clip_low": 0.2,
    "trainer.loss.clip_high": 0.2,
    "trainer.loss.dual_clip": 3.0,
    "trainer.loss.kl_in": "loss",
    "trainer.loss.kl_estimator": "k3",
    "trainer.loss.kl_coefficient": 0.001,
    "trainer.loss.entropy_coefficient": 0.0,
    "trainer.batch.token_budget": 16384,
    "trainer.batch.max_staleness": 0,
    "trainer.optimizer.learning_rate": 1e-6,
    "trainer.optimizer.schedule": "constant",
    "trainer.optimizer.beta1": 0.9,
    "trainer.optimizer.beta2": 0.999,
    "trainer.optimizer.weight_decay": 0.01,
    "trainer.optimizer.max_grad_norm": 1.0,
    "trainer.parallel.offload_optimizer": True,
    "trainer.parallel.activation_checkpointing": 1.0,
    "trainer.checkpoint.every": 100,
}
PROMPTS = "env_config.train_tasks_rollout_size"
OWN: dict[str, dict[str, Any]] = {
    "openr1_1.7b_streamed.sh": {
        "model_config.base_model": "Qwen/Qwen3-1.7B",
        PROMPTS: 128,
        "trainer.placement": "hybrid",
    },
    "openr1_1.7b_mini.sh": {
        "model_config.base_model": "Qwen/Qwen3-1.7B",
        PROMPTS: 64,
        "trainer.placement": "hybrid",
        "trainer.nproc_per_node": 2,
    },
    "openr1_1.7b_sync.sh": {
        "model_config.base_model": "Qwen/Qwen3-1.7B",
        PROMPTS: 256,
        "trainer.placement": "colocated",
    },
    "openr1_8b_streamed.sh": {
        "model_config.base_model": "Qwen/Qwen3-8B",
        PROMPTS: 128,
        "trainer.placement": "hybrid",
    },
    "openr1_8b_sync.sh": {
        "model_config.base_model": "Qwen/Qwen3-8B",
        PROMPTS: 128,
        "trainer.placement": "colocated",
    },
}


@pytest.fixture
def example(harness):
    """Runs an example over a hub cache that holds the two models."""
    hub = harness.home / "hub"
    for model in ("1.7B", "8B"):
        snapshot = hub / f"models--Qwen--Qwen3-{model}" / "snapshots" / "0"
        save_tiny_model_folder(snapshot)
        (snapshot / "config.json").write_text('{"model_type": "qwen3"}')
        (snapshot / "model.safetensors").write_bytes(b"0" * 64)

    def run(name: str, *words: str, **environ: str) -> subprocess.CompletedProcess:
        offline = {"HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1"}
        return subprocess.run(
            ["bash", str(EXAMPLES / name), *words],
            env=harness.env(**offline, **environ), capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    def dry_run(name: str, *words: str, **environ: str) -> subprocess.CompletedProcess:
        paths = ("--data-path", str(harness.data), "--log-path", str(harness.log))
        return run(
            name, *paths, "--max-iterations", "2", "--dry-run", "--verbose", "pool.port=0", *words, **environ
        )

    run.plan = dry_run
    return run


def configuration(shown: str) -> dict[str, Any]:
    text = shown.partition("[configuration]\n")[2].partition("\n\n[notes]")[0]
    return yaml.safe_load(text)


def value_of(config: dict[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value[part]
    return value


def test_every_example_of_a_run_is_checked_here():
    assert {path.name for path in EXAMPLES.glob("openr1_*.sh")} - {WORKER} == set(OWN)


WORKERS = {
    "openr1_1.7b_streamed.sh": ("1.7b", 1),
    "openr1_8b_streamed.sh": ("8b", 2),
    "openr1_1.7b_mini.sh": ("mini", 2),
}
"""The size of an example's workers, and the GPUs that an engine spans."""


@pytest.mark.parametrize("name", OWN)
def test_an_example_and_its_worker_have_the_parameters_of_the_reference(harness, example, name):
    done = example.plan(name, **GPUS)

    assert done.returncode == 0, done.stderr
    config = configuration(done.stdout)
    wanted = SHARED | OWN[name]
    assert {key: value_of(config, key) for key in wanted} == wanted
    assert "stream-train --plan PLAN" in done.stdout
    assert not harness.log.exists()
    if name not in WORKERS:
        return

    size, gpus = WORKERS[name]
    started = example(WORKER, size, "--gpus", "2,3", RL_AGENT_PYTHON=echo(harness, '"$*"'))
    assert started.returncode == 0, started.stderr
    for words in (
        f"join-pool --model {config['model_config']['base_model']} ",
        f"--capacity {config['pool']['default_capacity']} ",
        f"--max-model-len {config['engine']['max_model_len']} ",
        f"--tensor-parallel-size {gpus} ",
        "--gpus 2,3\n",
    ):
        assert words in started.stdout


def echo(harness, words: str) -> str:
    """A program that prints the words it is given, instead of Python."""
    program = harness.home / "echo"
    program.write_text(f"#!/usr/bin/env bash\nprintf '%s\\n' {words}\n")
    program.chmod(0o755)
    return str(program)


def test_flags_and_keys_of_the_user_are_handed_on(example):
    done = example.plan("openr1_8b_streamed.sh", "--eval-interval", "7", "trainer.mini_batches=2", **GPUS)
    assert done.returncode == 0, done.stderr
    assert configuration(done.stdout)["trainer"]["mini_batches"] == 2


@pytest.mark.parametrize("name", [*OWN, "prepare_openr1.sh", WORKER])
def test_every_example_says_how_it_is_used(example, name):
    done = example(name, "--help")
    assert done.returncode == 0, done.stderr
    assert f"Usage: bash scripts/examples/{name}" in done.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (WORKER, ("1.7b", "--capacity", "64", "--model=m", "--engine-args", "--x 1")),
        ("prepare_openr1.sh", ("out", "--limit", "10", "--test-fraction=0.2", "--subset", "default")),
        ("prepare_openr1.sh", ("out", "--source", "files")),
    ],
)
def test_a_flag_of_the_user_takes_the_place_of_the_example_s(harness, example, name, words):
    given = example(name, *words, RL_AGENT_PYTHON=echo(harness, '"$@"')).stdout.splitlines()
    flags = [word.partition("=")[0] for word in given if word.startswith("--") and " " not in word]
    assert set(words[1:]) <= set(given)
    assert len(flags) == len(set(flags))


def test_a_worker_of_an_unknown_size_is_a_usage_error(example):
    done = example(WORKER, "7b")
    assert done.returncode == 2
    assert "1.7b, 8b or mini" in done.stderr
