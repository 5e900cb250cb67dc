"""A run with real engines, stopped in every phase: nothing stays behind, nothing finished is lost."""

import os
import signal

import pytest

from tests.integration.real_run import LIMIT_S, NUM_TASKS, NUM_TEST_TASKS, Run

ROLLOUT = ("--rl-phase", "rollout", "--rollout-split", "train-only", "--max-iterations", "1")
BOTH = ("--rl-phase", "both", "--eval-interval", "1", "--max-iterations", "1", "trainer.num_train_epochs=150")
"""Trains long enough to be stopped in the middle."""

pytestmark = pytest.mark.vllm


@pytest.fixture
def run(tmp_path):
    with Run(tmp_path) as made:
        yield made


@pytest.mark.timeout(900)
def test_a_run_stopped_in_three_ways_leaves_no_process_and_loses_no_episode(run):
    process = run.start(*ROLLOUT)
    run.wait_for_episodes(process, 5)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal sends on Ctrl+C
    assert run.seconds_until_gone(process) < LIMIT_S
    assert process.returncode == 130
    after_ctrl_c = run.finished()
    assert len(after_ctrl_c) >= 5

    process = run.start(*ROLLOUT, "--resume")
    run.wait_for_engine_start(process, logs=2)
    process.terminate()
    assert run.seconds_until_gone(process) < LIMIT_S
    assert process.returncode == 143
    assert run.finished() == after_ctrl_c

    process = run.start(*ROLLOUT, "--resume")
    run.wait_for_episodes(process, len(after_ctrl_c) + 5)
    process.kill()
    assert run.seconds_until_gone(process) < LIMIT_S
    after_kill = run.finished()
    assert after_kill[: len(after_ctrl_c)] == after_ctrl_c

    process = run.start(*ROLLOUT, "--resume")
    assert process.wait(300) == 0, (run.home / "output").read_text()[-4000:]
    assert run.seconds_until_gone(process) < LIMIT_S
    final = run.finished()
    assert final[: len(after_kill)] == after_kill
    assert sorted(final) == sorted(f"{n}:0:0" for n in range(NUM_TASKS))


@pytest.mark.timeout(1200)
def test_a_loop_stopped_in_evaluation_and_training_goes_on_and_publishes(run):
    process = run.start(*BOTH)
    run.wait_for_episodes(process, 5, "test")
    process.terminate()
    assert run.seconds_until_gone(process) < LIMIT_S
    assert process.returncode == 143
    evaluated = run.finished("test")
    assert 5 <= len(evaluated) < NUM_TEST_TASKS

    process = run.start(*BOTH, "--resume")
    run.wait_for_training(process, logs=1)
    os.killpg(process.pid, signal.SIGINT)
    assert run.seconds_until_gone(process) < LIMIT_S
    assert process.returncode == 130
    assert not run.paths.model_link.exists()

    process = run.start(*BOTH, "--resume")
    run.wait_for_training(process, logs=2)
    process.kill()
    assert run.seconds_until_gone(process) < LIMIT_S

    process = run.start(*BOTH, "--resume")
    assert process.wait(300) == 0, (run.home / "output").read_text()[-4000:]
    assert run.seconds_until_gone(process) < LIMIT_S
    assert run.paths.model_link.resolve().name == "version-000001"
    assert run.finished("test")[: len(evaluated)] == evaluated
    assert sorted(run.finished()) == sorted(f"{n}:0:0" for n in range(NUM_TASKS))
    assert sorted(run.finished("test")) == sorted(f"{n}:0:0" for n in range(NUM_TEST_TASKS))
