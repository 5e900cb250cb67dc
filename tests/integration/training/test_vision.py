"""The whole loop with a vision model: pictures of a game, a real vLLM, a real LLaMA-Factory update, again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.paths import PROJECT_ROOT, RunPaths
from rl_agent.rollout.trajectories.shard import read_shard
from tests.integration.training.tiny_vision_model import MAX_LENGTH
from tests.integration.training.vision_packages import vision_environment

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1200)]

TOLERANCE = 1e-3
TOKENS_OF_AN_IMAGE = 4
LAKE = {"prompt": "Reach the goal.", "difficulty": "easy", "env": "gymnasium", "env_id": "FrozenLake-v1"}


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    return {
        **os.environ,
        **vision_environment(tmp_path_factory.mktemp("packages")),
        "CUDA_VISIBLE_DEVICES": "",
        "RL_AGENT_PYTHON": sys.executable,
        "WANDB_MODE": "disabled",
    }


def call(argv: list[str], environ: dict[str, str]) -> str:
    done = subprocess.run(argv, cwd=PROJECT_ROOT, env=environ, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory, environ) -> Path:
    """A folder with tasks and the tiny model."""
    home = tmp_path_factory.mktemp("vision")
    call([sys.executable, "-m", "tests.integration.training.tiny_vision_model", str(home / "base")], environ)
    tasks = "".join(json.dumps(LAKE | {"task_id": f"lake-{n}", "seed": n}) + "\n" for n in range(12))
    for split in ("train", "test"):
        (home / f"{split}.jsonl").write_text(tasks)
    return home


def run(home: Path, environ: dict[str, str], name: str, *words: str) -> RunPaths:
    """Two iterations that end well; their log path has this name."""
    argv = [
        "bash", "scripts/run.sh", "--data-path", str(home), "--log-path", str(home / name),
        "--rl-phase", "both", "--no-final-eval", "--max-iterations", "2", "--eval-interval", "2",
        f"model_config.base_model={home / 'base'}",
        f"engine.port={free_port()}", f"engine.max_model_len={MAX_LENGTH}", "engine.max_num_seqs=8",
        "engine.extra_args.kv-cache-memory-bytes=67108864", "policy_config.max_new_tokens=24",
        "env_config.kwargs={gymnasium: {view: image}}", "env_config.train_difficulty_max_steps={easy: 5}",
        "context.max_images=2", "context.max_rounds=1", "rollout.completion_threshold=1.0", *words,
    ]  # fmt: skip
    call(argv, environ)
    return RunPaths(home / name)


@pytest.fixture(scope="module")
def paths(home, environ) -> RunPaths:
    """Paths of a run that clones."""
    return run(
        home, environ, "log",
        "env_config.train_tasks_rollout_size=-1", "rollout.group_size=4", "trainer.reward_threshold=0",
        "trainer.filter_unchanged_steps=false", "trainer.warmup_steps=0", "trainer.learning_rate=0.001",
    )  # fmt: skip


def test_the_streaming_trainer_scores_images_as_the_engine_did(home, environ):
    paths = run(
        home, environ, "grpo",
        "trainer=grpo", "pool.port=0", "env_config.train_tasks_rollout_size=6", "rollout.group_size=4",
        "trainer.mini_batches=2", "trainer.loss.drop_uninformative=false",
        "trainer.optimizer.learning_rate=0.001",
    )  # fmt: skip
    metrics = [json.loads(line) for line in paths.metrics.read_text().splitlines()]
    differences = [
        line["trainer/logprob_difference"] for line in metrics if "trainer/logprob_difference" in line
    ]
    assert differences and max(differences) < 1e-5
    computed = sum(line.get("trainer/computed_tokens", 0) for line in metrics)
    assert 0 < computed < 0.7 * sum(line.get("trainer/total_tokens", 0) for line in metrics)
    assert paths.model_link.resolve() == paths.version_dir(2)


def test_the_second_iteration_plays_the_model_of_the_first(paths):
    first, second = (list(read_shard(paths.shard("train", iteration))[1]) for iteration in (1, 2))
    assert {(t.weight_version_min, t.weight_version_max) for t in first} == {(0, 0)}
    assert {(t.weight_version_min, t.weight_version_max) for t in second} == {(1, 1)}
    assert {str(t.status) for t in first + second} == {"completed"}
    assert paths.model_link.resolve() == paths.version_dir(2)
    images = [path for t in first + second for step in t.steps for path in step.observation.images]
    assert len(images) >= 24
    assert all(Path(path).is_relative_to(paths.images) and Path(path).is_file() for path in images)


def test_prompts_logprobs_and_what_is_trained_on_are_what_the_engine_saw(paths, environ):
    base = paths.log_path.parent / "base"
    check = [
        sys.executable,
        "-m",
        "tests.integration.training.vision_check",
        str(base),
        str(paths.shard("train", 1)),
    ]
    steps = [json.loads(line) for line in call(check, environ).splitlines()]
    assert len(steps) >= 12
    assert {step["images"] for step in steps} == {1, 2}
    assert any(step["shown_from"] for step in steps)  # with older steps as lines
    for step in steps:
        assert step["is_same_prompt"] and step["is_trained_on"], step
        assert step["placeholders"] == step["images"] * TOKENS_OF_AN_IMAGE > 0
        assert step["logprob_difference"] < TOLERANCE
