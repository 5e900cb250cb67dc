"""A run with real engines, stopped in every phase: nothing stays behind, nothing finished is lost."""

import os
import signal

import pytest

from tests.integration.real_run import LIMIT_S, NUM_TASKS, NUM_TEST_TASKS, Run

BOTH = ("--rl-phase", "both", "--no-final-eval", "--eval-interval", "1", "--max-iterations", "1")
LONG_TRAINING = "trainer.num_train_epochs=150"
"""Long enough to be stopped in the middle."""
SHORT_TRAINING = "trainer.num_train_epochs=1"

pytestmark = pytest.mark.vllm


@pytest.fixture
def run(tmp_path):
    with Run(tmp_path) as started:
        yield started


def stop(run, process, number):
    """TERM and KILL go to `run.sh` alone, INT to its whole group as a terminal sends Ctrl+C."""
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    assert run.seconds_until_gone(process) < LIMIT_S
    # Killed it says nothing; what it had started is gone all the same.
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)


@pytest.mark.timeout(600)
def test_a_rollout_killed_with_its_engine_leaves_its_episodes_alone(run):
    rollout = ("--rl-phase", "rollout", "--rollout-split", "train-only", "--max-iterations", "1")
    process = run.start(*rollout)
    run.wait_for_episodes(process, 5)
    stop(run, process, signal.SIGKILL)
    assert 5 <= len(run.finished()) < NUM_TASKS


@pytest.mark.extended
@pytest.mark.timeout(1500)
def test_a_loop_stopped_in_every_phase_leaves_no_process_and_publishes(run):
    process = run.start(*BOTH, LONG_TRAINING)
    run.wait_for_episodes(process, 5)
    stop(run, process, signal.SIGINT)
    after_ctrl_c = run.finished()
    assert 5 <= len(after_ctrl_c) < NUM_TASKS

    process = run.start(*BOTH, LONG_TRAINING, "--resume")
    run.wait_for_engine_start(process, logs=2)
    stop(run, process, signal.SIGTERM)
    assert run.finished() == after_ctrl_c

    process = run.start(*BOTH, LONG_TRAINING, "--resume")
    run.wait_for_episodes(process, 5, "test")
    stop(run, process, signal.SIGKILL)
    collected, evaluated = run.finished(), run.finished("test")
    assert collected[: len(after_ctrl_c)] == after_ctrl_c
    assert 5 <= len(evaluated) < NUM_TEST_TASKS

    process = run.start(*BOTH, LONG_TRAINING, "--resume")
    run.wait_for_training(process, logs=1)
    stop(run, process, signal.SIGKILL)
    assert not run.paths.model_link.exists()

    process = run.start(*BOTH, SHORT_TRAINING, "--resume")
    assert process.wait(300) == 0, (run.home / "output").read_text()[-4000:]
    assert run.seconds_until_gone(process) < LIMIT_S
    assert run.paths.model_link.resolve().name == "version-000001"
    assert run.finished("test")[: len(evaluated)] == evaluated
    assert run.finished() == collected
    assert sorted(collected) == sorted(f"{n}:0:0" for n in range(NUM_TASKS))
    assert sorted(run.finished("test")) == sorted(f"{n}:0:0" for n in range(NUM_TEST_TASKS))
