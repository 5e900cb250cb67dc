"""`weights=inplace` in the loop of `run.sh`: one engine for all iterations, a restart where it must be."""

import json
import os
import signal
from pathlib import Path

from tests.shell.conftest import wait_until

BOTH = (
    "--rl-phase",
    "both",
    "--no-final-eval",
    "--eval-interval",
    "9",
    "--max-iterations",
    "2",
    "weights=inplace",
)


def store_of(harness):
    plan = json.loads((harness.log / "runs" / "latest" / "plan.json").read_text())
    return Path(f"/dev/shm/rl-agent-{plan['run_id']}-{plan['incarnation']}")


def spans(harness):
    lines = (harness.log / "timeline.jsonl").read_text().splitlines()
    return [json.loads(line)["name"] for line in lines]


def test_one_engine_serves_all_versions(harness):
    done = harness.run(*BOTH)

    assert done.returncode == 0, done.stderr
    assert harness.verbs == [
        "serve", "rollout", "rollout", "prepare-update", "train", "publish",
        "swap", "rollout", "prepare-update", "train", "publish",
    ]  # fmt: skip
    assert spans(harness).count("engine_start") == 1
    assert spans(harness).count("weights_swap") == 1
    assert (harness.log / "checkpoints" / "version-000001" / "served.json").exists()
    assert harness.processes() == {}


def test_an_engine_that_refuses_a_swap_restarts_then_is_rolled_back(harness):
    done = harness.run(
        *BOTH, "engine.start_attempts=1", FAKE_SWAP="fail", FAKE_SERVE="die_on_new"
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert harness.verbs[5:9] == ["publish", "swap", "serve", "serve"]
    assert "weights_swap" not in spans(harness)
    assert "going back to the base model" in done.stderr


def test_after_a_failed_update_the_engine_goes_on_as_it_is(harness):
    done = harness.run(*BOTH, FAKE_TRAIN="fail")

    assert done.returncode == 1
    assert harness.verbs.count("serve") == 1
    assert "swap" not in harness.verbs


def test_ctrl_c_during_a_swap_ends_the_run_and_frees_its_memory(harness):
    process = harness.start(*BOTH, FAKE_SWAP="hang")
    harness.wait_for_call("swap")
    wait_until(lambda: store_of(harness).exists(), harness=harness)
    os.killpg(process.pid, signal.SIGINT)

    assert process.wait(30) == 130
    wait_until(lambda: harness.processes() == {}, harness=harness)
    assert not store_of(harness).exists()


def test_a_killed_driver_leaves_no_weights_in_memory(harness):
    process = harness.start(*BOTH, FAKE_SWAP="hang")
    harness.wait_for_call("swap")
    wait_until(lambda: store_of(harness).exists(), harness=harness)
    process.kill()

    wait_until(lambda: harness.processes() == {}, harness=harness)
    assert not store_of(harness).exists()
