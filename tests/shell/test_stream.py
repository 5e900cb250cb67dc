"""`trainer=grpo` in the loop: a real manager and worker, a simulated engine, stubs of rollout and trainer."""

import signal

import pytest

from tests.shell.test_stopping import LIMIT_S, interrupt_as_a_terminal_does, seconds_until_gone
from tests.support.ports import quiet_port

BOTH = (
    "--rl-phase",
    "both",
    "--no-final-eval",
    "--eval-interval",
    "2",
    "--max-iterations",
    "3",
    "trainer=grpo",
    "rollout.group_size=2",
)


@pytest.fixture
def pool():
    return ("pool=elastic", f"pool.port={quiet_port()}")


def done_in_order(harness) -> list[str]:
    """Return the calls of phases and trainer; the trainer's start and the engine's are in any order."""
    return [
        " ".join(call.split()[:5] if call.startswith("rollout") else call.split())
        for call in harness.calls
        if call.split()[0] in ("rollout", "published")
    ]


def rollout(iteration: int, split: str = "train") -> str:
    return f"rollout --iteration {iteration} --split {split}"


def oldest_versions(harness) -> list[int]:
    """Return the oldest versions that the training rollouts asked of engines."""
    calls = [call.split() for call in harness.calls if call.startswith("rollout") and " train" in call]
    return [int(call[call.index("--min-weight-version") + 1]) for call in calls]


def test_phases_take_turns_and_a_failure_after_the_last_version_is_done(harness, pool):
    done = harness.run(*BOTH, *pool, FAKE_STREAM_TRAIN="end_with_75")

    assert done.returncode == 0, done.stderr
    assert done_in_order(harness) == [
        "published 0", rollout(1, "test"), rollout(1),
        "published 1", rollout(2),
        "published 2", rollout(3, "test"), rollout(3), "published 3",
    ]  # fmt: skip
    assert oldest_versions(harness) == [0, 1, 2]
    assert not {"prepare-update", "train", "publish"} & set(harness.verbs)
    assert harness.processes() == {}
    assert "ended with status 75 after its last version was published" in done.stderr

    again = harness.plan(*BOTH, *pool, "--resume")
    assert again.returncode == 0
    assert again.stderr.splitlines() == [
        "plan: --resume: the last run has done all its iterations; raise --max-iterations"
    ]


def test_with_staleness_the_next_rollout_precedes_the_next_version(harness, pool):
    process = harness.start(*BOTH, *pool, "trainer.batch.max_staleness=1", FAKE_STREAM_TRAIN="hang")
    harness.wait_for_call("rollout", 3)  # test 1, train 1, train 2

    assert "published 1" not in done_in_order(harness)
    assert oldest_versions(harness) == [0, 0]
    process.terminate()
    assert seconds_until_gone(harness, process) < LIMIT_S


def test_a_killed_trainer_goes_on_and_ends_after_the_last_evaluation(harness, pool):
    words = [word for word in BOTH if word != "--no-final-eval"]
    done = harness.run(*words, *pool, FAKE_STREAM_TRAIN="die_once")

    assert done.returncode == 0, done.stderr
    assert harness.verbs.count("stream-train") == 2
    assert done_in_order(harness)[-2:] == ["published 3", rollout(4, "test")]
    assert harness.calls[-1] == "trainer stopped" and harness.processes() == {}


def test_a_trainer_that_always_dies_ends_the_run_with_its_reason(harness, pool):
    done = harness.run(*BOTH, *pool, "trainer.max_restarts=1", FAKE_STREAM_TRAIN="die")

    assert done.returncode == 1
    assert "the reason the trainer died" in done.stderr
    assert harness.verbs.count("stream-train") == 2
    assert harness.processes() == {}


def test_a_trainer_that_never_publishes_is_given_up_at_the_deadline(harness, pool):
    done = harness.run(*BOTH, *pool, "trainer.timeout_s=1", FAKE_STREAM_TRAIN="hang")

    assert done.returncode == 124
    assert "did not publish iteration 1 within trainer.timeout_s=1" in done.stderr
    assert harness.processes() == {}


def test_a_stopped_run_leaves_nothing_and_goes_on_with_resume(harness, pool):
    process = harness.start(*BOTH, *pool, FAKE_ROLLOUT="hang")
    harness.wait_for_call("rollout", 1)
    interrupt_as_a_terminal_does(process)
    assert seconds_until_gone(harness, process) < LIMIT_S

    done = harness.run(*BOTH, *pool, "--resume")

    assert done.returncode == 0, done.stderr
    assert done_in_order(harness)[-2:] == [rollout(3), "published 3"]


def test_a_killed_driver_leaves_no_trainer(harness, pool):
    process = harness.start(*BOTH, *pool, FAKE_ROLLOUT="hang")
    harness.wait_for_call("rollout")
    process.send_signal(signal.SIGKILL)
    assert seconds_until_gone(harness, process) < LIMIT_S


def test_it_brings_its_pool_along(harness):
    done = harness.plan(*BOTH, "pool.port=0", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "rl_agent.cli manager --plan PLAN" in done.stdout


def test_it_wants_a_pool(harness):
    done = harness.plan(*BOTH, "pool=none")
    assert done.returncode == 78
    assert "add pool=elastic" in done.stderr
