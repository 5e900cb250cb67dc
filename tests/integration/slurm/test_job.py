"""The sbatch files under a real Slurm of several nodes: run.sh starts, drains, goes on, ends with its job."""

import pytest

from tests.integration.slurm.slurm_jobs import Jobs, cluster  # noqa: F401
from tests.shell.conftest import harness  # noqa: F401

ROLLOUT = ("--rl-phase", "rollout", "--rollout-split", "train-only", "--max-iterations", "1")


@pytest.fixture
def jobs(cluster, harness):  # noqa: F811
    """Jobs of one node; what needs a model is stubbed."""
    settings = (f"model_config.base_model={harness.home / 'model'}",)
    yield Jobs(cluster, harness.home, settings, harness.env(), harness.processes)
    cluster.end_jobs()


def run_until_it_collects(jobs, harness, *options):  # noqa: F811
    """A job whose first rollout hangs; one that goes on with it does not."""
    job = jobs.run(*ROLLOUT, options=options, FAKE_ROLLOUT="hang")
    jobs.wait_for(lambda: "rollout" in harness.verbs, "to begin a rollout", job)
    return job


def assert_it_went_on(jobs, harness):  # noqa: F811
    assert jobs.plan["attempt"] == 2
    assert harness.verbs.count("rollout") == 2
    assert "begun train 1" in harness.calls


def test_a_job_of_one_node_runs_the_loop_with_the_words_as_typed(jobs):
    strange = 'it\'s a "name"  $(touch hacked) *'

    job = jobs.run(
        "--rl-phase", "both", "--no-final-eval",
        "--eval-interval", "1", "--max-iterations", "1", f"run_name={strange}"
    )  # fmt: skip

    jobs.wait(job, "COMPLETED")
    assert jobs.cluster.field_of(job, "ExitCode") == "0:0"
    assert (jobs.log / "model.pt").resolve().name == "version-000001", jobs.output(job)
    assert jobs.plan["command"]["num_nodes"] == 1
    assert jobs.plan["config"]["run_name"] == strange
    assert not list(jobs.home.rglob("hacked"))


def test_a_cancelled_job_leaves_no_process_and_a_run_that_resumes(jobs, harness):  # noqa: F811
    job = run_until_it_collects(jobs, harness)

    jobs.cluster.call("scancel", job)

    jobs.wait(job, "CANCELLED")
    assert jobs.cluster.field_of(job, "Restarts") == "0"
    again = jobs.run(*ROLLOUT, "--resume", FAKE_ROLLOUT="hang")
    jobs.wait(again, "COMPLETED")
    assert_it_went_on(jobs, harness)


@pytest.mark.extended
def test_a_job_drained_ahead_of_its_limit_requeues_itself_and_goes_on(jobs, harness):  # noqa: F811
    job = run_until_it_collects(jobs, harness)

    jobs.cluster.call("scancel", "--signal=TERM", job)  # as --signal=TERM@120 does

    jobs.wait(job, "COMPLETED")
    assert jobs.cluster.field_of(job, "Restarts") == "1"
    assert_it_went_on(jobs, harness)
    assert "goes back into the queue" in jobs.output(job)


@pytest.mark.extended
def test_term_for_the_batch_shell_alone_drains_the_run_and_ends_the_job(jobs, harness):  # noqa: F811
    job = run_until_it_collects(jobs, harness)

    jobs.cluster.call("scancel", "--batch", "--signal=TERM", job)

    jobs.wait(job, "FAILED")
    assert jobs.cluster.field_of(job, "ExitCode") == "143:0"
    assert "run: stopping" in jobs.output(job)


@pytest.mark.extended
def test_a_requeued_job_goes_on_with_its_run(jobs, harness):  # noqa: F811
    job = run_until_it_collects(jobs, harness)

    jobs.cluster.call("scontrol", "requeue", job)

    jobs.wait(job, "COMPLETED")
    assert_it_went_on(jobs, harness)


@pytest.mark.extended
def test_a_preempted_job_leaves_within_the_grace_and_goes_on_later(jobs, harness):  # noqa: F811
    job = run_until_it_collects(jobs, harness, "--partition=preemptible")

    urgent = jobs.occupy(*jobs.cluster.nodes)

    jobs.cluster.wait_for_state(urgent, "COMPLETED")
    jobs.wait(job, "COMPLETED")
    assert_it_went_on(jobs, harness)
    assert "goes back into the queue" in jobs.output(job)  # by itself: the grace was not used up
