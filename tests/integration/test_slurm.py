"""The sbatch files under a real Slurm of several nodes: run.sh starts, drains, goes on, ends with its job."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.slurm_cluster import SlurmCluster, SlurmUnavailable, wait_until
from tests.shell.conftest import Harness, harness  # noqa: F401

SLURM_FILES = Path(__file__).resolve().parents[2] / "scripts" / "slurm"
NUM_NODES = 3
ROLLOUT = ("--rl-phase", "rollout", "--rollout-split", "train-only", "--max-iterations", "1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    try:
        with SlurmCluster(tmp_path_factory.mktemp("slurm") / "cluster", NUM_NODES) as cluster:
            yield cluster
    except SlurmUnavailable as reason:
        pytest.skip(f"Slurm cannot start here: {reason}")


@dataclass
class Jobs:
    """The jobs that a test submits, over the paths of its harness."""

    cluster: SlurmCluster
    harness: Harness

    def submit(self, file: str, options: tuple[str, ...], *words: str, **variables: str) -> str:
        """Returns the job's number."""
        output = f"--output={self.harness.home}/%j.out"
        script = [str(SLURM_FILES / file), *self.harness.argv(*words)[2:]]
        environ = self.harness.env(**variables)
        return self.cluster.call("sbatch", "--parsable", output, *options, *script, environ=environ)

    def run(self, *words: str, options: tuple[str, ...] = (), **variables: str) -> str:
        return self.submit("run.sbatch", options, *words, **variables)

    def output(self, job: str) -> str:
        path = self.harness.home / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def wait_for_rollout(self, job: str) -> None:
        wait_until(lambda: bool(self.rollouts), 30, lambda: f"a rollout; the job said: {self.output(job)}")

    def wait(self, job: str, state: str) -> None:
        """Until the job is in that state and what it was started with is gone."""
        self.cluster.wait_for_state(job, state)
        wait_until(lambda: not self.harness.processes(), 20, lambda: f"the end of {self.harness.processes()}")

    @property
    def plan(self) -> dict:
        return json.loads((self.harness.log / "runs" / "latest" / "plan.json").read_text())

    @property
    def rollouts(self) -> list[bool]:
        """Of each rollout begun, whether it went on with a checkpoint."""
        return [call.endswith("--resume") for call in self.harness.calls if call.startswith("rollout")]


@pytest.fixture
def jobs(cluster, harness):  # noqa: F811
    made = Jobs(cluster, harness)
    yield made
    cluster.end_jobs()


def test_a_job_of_one_node_runs_the_loop_to_its_end(jobs):
    job = jobs.run("--rl-phase", "both", "--eval-interval", "1", "--max-iterations", "1")

    jobs.wait(job, "COMPLETED")
    assert jobs.cluster.field_of(job, "ExitCode") == "0:0"
    assert (jobs.harness.log / "model.pt").resolve().name == "version-000001", jobs.output(job)
    assert jobs.plan["command"]["num_nodes"] == 1


def test_words_reach_run_sh_as_they_were_typed(jobs):
    strange = 'it\'s a "name"  $(touch hacked) *'

    job = jobs.run(*ROLLOUT, f"run_name={strange}")

    jobs.wait(job, "COMPLETED")
    assert jobs.plan["config"]["run_name"] == strange
    assert not list(jobs.harness.home.rglob("hacked"))


def test_a_failing_run_fails_its_job_with_its_status(jobs):
    job = jobs.run(*ROLLOUT, FAKE_ROLLOUT="fail")

    jobs.wait(job, "FAILED")
    assert jobs.cluster.field_of(job, "ExitCode") == "7:0"


def test_a_cancelled_job_leaves_no_process_and_a_run_that_resumes(jobs):
    job = jobs.run(*ROLLOUT, FAKE_ROLLOUT="hang")
    jobs.wait_for_rollout(job)

    jobs.cluster.call("scancel", job)

    jobs.wait(job, "CANCELLED")
    assert jobs.cluster.field_of(job, "Restarts") == "0"
    again = jobs.run(*ROLLOUT, "--resume", FAKE_ROLLOUT="hang")
    jobs.wait(again, "COMPLETED")
    assert jobs.rollouts == [False, True]


def test_a_job_that_slurm_drains_ahead_of_its_limit_queues_itself_and_goes_on(jobs):
    job = jobs.run(*ROLLOUT, FAKE_ROLLOUT="hang")
    jobs.wait_for_rollout(job)

    jobs.cluster.call("scancel", "--signal=TERM", job)  # as --signal=TERM@120 does

    jobs.wait(job, "COMPLETED")
    assert jobs.cluster.field_of(job, "Restarts") == "1"
    assert jobs.rollouts == [False, True]
    assert "goes back into the queue" in jobs.output(job)


def test_term_for_the_batch_shell_alone_drains_the_run_and_ends_the_job(jobs):
    job = jobs.run(*ROLLOUT, FAKE_ROLLOUT="hang")
    jobs.wait_for_rollout(job)

    jobs.cluster.call("scancel", "--batch", "--signal=TERM", job)

    jobs.wait(job, "FAILED")
    assert jobs.cluster.field_of(job, "ExitCode") == "143:0"
    assert "run: stopping" in jobs.output(job)


def test_a_requeued_job_goes_on_with_its_run(jobs):
    job = jobs.run(*ROLLOUT, FAKE_ROLLOUT="hang")
    jobs.wait_for_rollout(job)

    jobs.cluster.call("scontrol", "requeue", job)

    jobs.wait(job, "COMPLETED")
    assert jobs.plan["attempt"] == 2
    assert jobs.rollouts == [False, True]


def test_a_preempted_job_leaves_within_the_grace_and_goes_on_later(jobs):
    job = jobs.run(*ROLLOUT, options=("--partition=preemptible",), FAKE_ROLLOUT="hang")
    jobs.wait_for_rollout(job)
    everything = ("--exclusive", f"--nodes={NUM_NODES}", "--output=/dev/null", "--wrap=sleep 1")

    urgent = jobs.cluster.call("sbatch", "--parsable", *everything, environ=os.environ)

    jobs.cluster.wait_for_state(urgent, "COMPLETED")
    jobs.wait(job, "COMPLETED")
    assert jobs.plan["attempt"] == 2
    assert jobs.rollouts == [False, True]
    assert "goes back into the queue" in jobs.output(job)  # by itself: the grace was not used up
