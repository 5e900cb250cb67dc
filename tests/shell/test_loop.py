"""The phase loop of `run.sh`, with real groups and real plans and stubbed models."""

import contextlib
import json
import subprocess
import sys

import pytest

from tests.shell.conftest import FAKE_VERBS

BOTH = ("--rl-phase", "both", "--no-final-eval", "--eval-interval", "1", "--max-iterations", "1")


def test_both_collects_evaluates_updates_and_serves_the_new_model(harness):
    done = harness.run("--rl-phase", "both", "--no-final-eval",
                       "--eval-interval", "2", "--max-iterations", "2",
                       FAKE_ROLLOUT="environment")  # fmt: skip

    assert done.returncode == 0, done.stderr
    verbs = [
        "serve", "rollout", "rollout", "prepare-update", "train", "publish",
        "serve", "rollout", "prepare-update", "train", "publish",
    ]  # fmt: skip
    assert harness.verbs == verbs
    assert (harness.log / "model.pt").resolve().name == "version-000002"
    names = [json.loads(line)["name"] for line in (harness.log / "timeline.jsonl").read_text().splitlines()]
    assert names == [
        "engine_start", "rollout", "evaluate", "training", "update",
        "engine_start", "rollout", "training", "update",
    ]  # fmt: skip
    assert harness.processes() == {}
    assert not (harness.log / "run.lock").exists()

    seen = json.loads((harness.home / "environment").read_text())
    assert seen["HF_HOME"] == str(harness.data / ".cache" / "huggingface")
    assert seen["DISABLE_VERSION_CHECK"] == "1"
    assert seen["DEEPSPEED_LOG_LEVEL"] == "WARNING"
    assert seen["WANDB_MODE"] == "offline"
    assert "wandb records offline" in done.stderr

    resume = ("--rl-phase", "both", "--eval-interval", "2", "--resume", "--max-iterations")
    nothing_left = harness.run(*resume, "2", "--no-final-eval")
    assert nothing_left.returncode == 0
    assert "raise --max-iterations" in nothing_left.stderr
    more = harness.run(*resume, "3")
    assert more.returncode == 0, more.stderr
    again = ["serve", "rollout", "rollout", "prepare-update", "train", "publish"]
    assert harness.verbs == [*verbs, *again, "serve", "rollout"]
    assert "--iteration 4 --split test" in harness.calls[-1], "the last model is evaluated before the end"
    assert "raise --max-iterations" in harness.plan(*resume, "3").stderr


def test_rollout_of_one_split_keeps_one_engine_and_the_users_variables(harness):
    theirs = {"HF_HOME": "/theirs", "WANDB_MODE": "disabled", "DEEPSPEED_LOG_LEVEL": "INFO"}
    words = ("--rl-phase", "rollout", "--rollout-split", "eval-only", "--max-iterations", "3")
    done = harness.run(*words, FAKE_ROLLOUT="environment", **theirs)

    assert done.returncode == 0, done.stderr
    assert harness.verbs == ["serve", "rollout", "rollout", "rollout"]
    assert all("--split test" in call for call in harness.calls if call.startswith("rollout"))
    assert len(list((harness.log / "test_trajectories").iterdir())) == 3
    seen = json.loads((harness.home / "environment").read_text())
    assert {name: seen[name] for name in theirs} == theirs
    assert not any(call.startswith("wandb-sync") for call in harness.calls)


def test_update_alone_ends_once_it_has_read_all_trajectories(harness):
    collect = ("--rl-phase", "rollout", "--rollout-split", "train-only", "--max-iterations", "1")
    for _ in range(2):  # a fresh start gets the next iteration and a run of its own
        assert harness.run(*collect).returncode == 0
    shards = sorted(path.name for path in (harness.log / "train_trajectories").iterdir())
    assert [name.rpartition("iteration")[2] for name in shards] == ["1", "2"]
    assert len([path for path in (harness.log / "runs").iterdir() if not path.is_symlink()]) == 2

    done = harness.run("--rl-phase", "update")
    assert done.returncode == 0, done.stderr
    verbs = [*["serve", "rollout"] * 2, "prepare-update", "train", "publish"]
    assert harness.verbs == verbs, "no engine is started"
    assert "update: one on steps drawn from training iterations 1 to 2, then the end" in done.stderr
    assert done.stderr.count("nothing new to train on: the served model was trained on") == 1

    again = harness.run("--rl-phase", "update")
    assert again.returncode == 0, again.stderr
    assert harness.verbs == verbs
    assert again.stderr.count("nothing new to train on") == 1


def test_update_alone_without_any_trajectory_is_refused_in_one_line(harness):
    done = harness.plan("--rl-phase", "update")
    assert done.returncode == 78
    (line,) = done.stderr.splitlines()
    assert "no training iteration is finished" in line and "--rl-phase rollout" in line


def test_a_failing_rollout_ends_the_loop_with_its_status(harness):
    done = harness.run(*BOTH, FAKE_ROLLOUT="fail")

    assert done.returncode == 7
    assert harness.verbs == ["serve", "rollout"]
    assert harness.processes() == {}


def test_an_engine_that_dies_in_a_rollout_restarts_and_the_rollout_goes_on(harness):
    done = harness.run(*BOTH, FAKE_ROLLOUT="engine_dies")

    assert done.returncode == 0, done.stderr
    assert harness.verbs[:4] == ["serve", "rollout", "serve", "rollout"]
    assert [call for call in harness.calls if call.startswith("begun")] == ["begun train 1", "begun test 1"]
    assert harness.processes() == {}


def test_an_engine_lost_again_and_again_ends_the_run_as_retry_later(harness):
    done = harness.run(*BOTH, "engine.start_attempts=2", FAKE_ROLLOUT="engine_gone")

    assert done.returncode == 75
    assert harness.verbs.count("rollout") == 2
    assert harness.processes() == {}


def test_an_update_with_nothing_to_train_on_is_skipped(harness):
    done = harness.run(*BOTH, FAKE_PREPARE_UPDATE="nothing")

    assert done.returncode == 0
    assert done.stderr.count("nothing to train on") == 1
    assert "train" not in harness.verbs
    assert outcomes(harness, "update") == ["skipped"]


def test_after_a_failed_update_the_old_model_serves_until_a_second_fails(harness):
    done = harness.run("--rl-phase", "both", "--no-final-eval", "--eval-interval", "9", FAKE_TRAIN="fail")

    assert done.returncode == 1
    assert "the previous model stays in service" in done.stderr
    assert "ValueError: the reason it failed" in done.stderr
    assert harness.verbs.count("train") == 2
    assert "publish" not in harness.verbs
    assert outcomes(harness, "update") == ["failed"]
    assert not (harness.log / "model.pt").exists()


def test_a_failed_last_update_is_the_exit_status(harness):
    assert harness.run(*BOTH, FAKE_TRAIN="fail").returncode == 1


def test_a_training_past_its_deadline_is_ended_with_its_children(harness):
    done = harness.run(
        "--rl-phase", "update", "--max-iterations", "1", "trainer.timeout_s=1", FAKE_TRAIN="hang"
    )  # fmt: skip

    assert done.returncode == 124
    assert "trainer.timeout_s=1" in done.stderr
    assert harness.processes() == {}


def test_an_engine_that_dies_at_its_starts_is_reported_with_its_log(harness):
    done = harness.run(*BOTH, "engine.start_attempts=2", FAKE_SERVE="die")

    assert done.returncode == 1
    assert harness.verbs == ["serve", "serve"]
    assert "CUDA error: the reason it died" in done.stderr
    assert len(list(harness.log.glob("runs/latest/logs/vllm-1-*.log"))) == 2


def test_a_new_model_that_does_not_start_is_rolled_back(harness):
    done = harness.run(
        "--rl-phase", "both", "--no-final-eval",
        "--eval-interval", "9", "--max-iterations", "2", "engine.start_attempts=1",
        FAKE_SERVE="die_on_new",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "going back to the base model" in done.stderr
    assert harness.verbs.count("rollout") == 3


@pytest.mark.extended
def test_a_new_model_that_changed_on_the_disk_is_rolled_back(harness):
    done = harness.run(
        "--rl-phase", "both", "--no-final-eval",
        "--eval-interval", "9", "--max-iterations", "2", FAKE_PUBLISH="damaged"
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "model.safetensors: differs from what was written" in done.stderr
    assert "going back to the base model" in done.stderr
    assert harness.verbs.count("serve") == 2
    assert harness.verbs.count("rollout") == 3


def test_debug_mode_stops_at_an_external_engine_with_old_weights(harness):
    with external_engine(harness, root=harness.home / "model") as engine:
        done = harness.run(
            "--rl-phase", "both", "--no-final-eval",
            "--eval-interval", "9", "--max-iterations", "2", "--debug-mode"
        )  # fmt: skip
        assert engine.poll() is None

    assert done.returncode == 75
    assert "start it on" in done.stderr
    assert "version-000001" in done.stderr
    assert harness.verbs == ["rollout", "rollout", "prepare-update", "train", "publish", "swap"]


def test_update_alone_ends_when_there_is_nothing_to_train_on(harness):
    done = harness.run("--rl-phase", "update", "--max-iterations", "5", FAKE_PREPARE_UPDATE="nothing")

    assert done.returncode == 78, done.stderr
    assert done.stderr.count("nothing to train on") == 1
    assert harness.verbs == ["prepare-update"]
    assert "training alone cannot change that" in done.stderr


def test_debug_mode_refuses_an_engine_with_a_foreign_model(harness):
    with external_engine(harness, root="/foreign"):
        done = harness.plan(*BOTH, "--debug-mode")

    assert done.returncode == 69
    assert "/foreign" in done.stderr


def test_an_engine_of_another_that_takes_the_port_is_left_alone(harness):
    process = harness.start(*BOTH, FAKE_SERVE="hang")  # it would find the port taken later
    harness.wait_for_call("serve")
    with external_engine(harness, root=harness.home / "model") as engine:
        assert process.wait(60) == 69
        assert engine.poll() is None

    assert f"engine.port={harness.port} is in use by process {engine.pid}" in harness.stderr
    assert harness.verbs == ["serve"], "it is not tried again"


def outcomes(harness, phase):
    flags = sorted((harness.log / "flags").glob(f"*/*/*/{phase}/rank-0.json"))
    return [json.loads(flag.read_text())["outcome"] for flag in flags]


@contextlib.contextmanager
def external_engine(harness, root):
    """A server of the user's, which the run did not start."""
    engine = subprocess.Popen(
        [sys.executable, str(FAKE_VERBS), "external", str(harness.port), str(root)],
        stdout=subprocess.PIPE,
    )
    engine.stdout.readline()
    try:
        yield engine
    finally:
        engine.kill()
        engine.communicate()
