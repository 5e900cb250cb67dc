"""The real loop with `weights=inplace`: one engine for all versions, and a restart where that cannot be."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from rl_agent.rollout.trajectories.shard import read_shard
from tests.integration.real_run import LIMIT_S, Run

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1500)]

LOOP = ("--rl-phase", "both", "--no-final-eval", "--eval-interval", "1", "weights=inplace")
LEARN = ("trainer.learning_rate=0.01", "trainer.num_train_epochs=1", "trainer.warmup_steps=0")
GREEDY = "policy_config.test_temperature=0.0"
WORDS = (*LOOP, *LEARN, GREEDY)


@pytest.fixture
def run(tmp_path):
    with Run(tmp_path) as loop_run:
        yield loop_run


def engine_starts(run: Run) -> int:
    return len(list(run.log.glob("runs/latest/logs/vllm-*.log")))


def spans(run: Run) -> list[str]:
    return [json.loads(line)["name"] for line in run.paths.timeline.read_text().splitlines()]


def responses(run: Run, iteration: int) -> dict[str, list[list[int]]]:
    """Token ids of every greedy answer of an evaluation."""
    _, episodes = read_shard(run.paths.shard("test", iteration))
    return {str(e.key): [list(step.generation.token_ids) for step in e.steps] for e in episodes}


def finish(run: Run, *words: str) -> None:
    process = run.start(*words)
    assert process.wait(600) == 0, (run.home / "output").read_text()[-4000:]
    assert run.seconds_until_gone(process) < LIMIT_S


def store_of(run: Run) -> Path:
    plan = json.loads((run.log / "runs" / "latest" / "plan.json").read_text())
    return Path("/dev/shm", f"rl-agent-{plan['run_id']}-{plan['incarnation']}")


def test_one_engine_serves_what_a_fresh_one_on_the_new_model_does(run, tmp_path):
    finish(run, *WORDS, "--max-iterations", "2")
    assert engine_starts(run) == 1
    assert spans(run).count("weights_swap") == 1
    first, second = responses(run, 1), responses(run, 2)
    assert first != second
    assert {e.weight_version_min for e in read_shard(run.paths.shard("train", 2))[1]} == {1}
    assert not store_of(run).exists()

    (tmp_path / "fresh").mkdir()
    fresh = Run(tmp_path / "fresh", model=shutil.copytree(run.paths.version_dir(1), tmp_path / "version 1"))
    alone = ("--rl-phase", "rollout", "--rollout-split", "eval-only", "--max-iterations", "1")
    finish(fresh, *alone, GREEDY)
    assert responses(fresh, 1) == second


def test_a_swap_that_fails_or_is_interrupted_costs_no_more_than_a_restart(run):
    process = run.start(*WORDS, "--max-iterations", "3")
    run.wait_until(lambda: run.paths.model_link.exists() and store_of(run).exists(), process, 400)
    os.killpg(process.pid, signal.SIGINT)
    assert run.seconds_until_gone(process) < LIMIT_S
    assert process.returncode == 130
    assert not store_of(run).exists()

    no_folder = run.home / "a file"
    no_folder.touch()
    finish(run, *WORDS, "--resume", f"weights.store={no_folder}", "--max-iterations", "3")
    assert engine_starts(run) == 1 + 2
    assert "the engine did not take the new weights" in (run.home / "output").read_text()
    assert run.paths.model_link.resolve().name == "version-000003"
