"""The sbatch files turn a job's variables into calls, with Slurm's programs and run.sh stubbed."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from rl_agent.paths import PROJECT_ROOT

PROGRAMS = {
    # the job's command, as Slurm tells it, and its state
    "squeue": 'if [[ $* == *%o* ]]; then echo "$SUBMITTED --data-path x"; else echo "${STATE:-RUNNING}"; fi',
    # runs the command behind the options once for each node; ends with the highest status
    "srun": """while [[ $1 == --* ]]; do shift; done
        highest=0
        for ((SLURM_NODEID = 0; SLURM_NODEID < SLURM_JOB_NUM_NODES; SLURM_NODEID++)); do
          status=0
          SLURM_NODEID=$SLURM_NODEID "$@" || status=$?
          ((status <= highest)) || highest=$status
        done
        exit "$highest\"""",
    "scancel": 'echo "$*" >>"$HOME/scancel"',
    "scontrol": 'echo "$*" >>"$HOME/scontrol"',
}
NOTE_WORDS = 'printf "%s\\0" "$@" >"$HOME/words-$SLURM_NODEID"\n'


@dataclass
class Job:
    """A project of its own with a run.sh that notes its words, and the programs that a job may call."""

    home: Path

    @property
    def project(self) -> Path:
        return self.home / "the project"

    @property
    def log(self) -> Path:
        return self.home / "a log"

    def run(self, file: str, *words: str, nodes: int = 1, run_sh: str = "", **variables: str) -> int:
        """Returns the job's exit status; `run_sh` is what run.sh does on every node."""
        submitted = self.project / "scripts" / "slurm" / file
        (self.project / "scripts" / "run.sh").write_text(NOTE_WORDS + run_sh)
        environ = {
            "PATH": f"{self.home / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "SUBMITTED": str(submitted),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NUM_NODES": str(nodes),
        }
        spooled = shutil.copy(submitted, self.home / "slurm_script")  # Slurm runs a copy, elsewhere
        return subprocess.run(["bash", spooled, *words], env=environ | variables, timeout=30).returncode

    def words(self, rank: int = 0) -> list[str]:
        return (self.home / f"words-{rank}").read_text().split("\0")[:-1]

    def calls_of(self, program: str) -> str:
        path = self.home / program
        return path.read_text() if path.exists() else ""

    @property
    def requeued(self) -> str:
        return self.calls_of("scontrol")


@pytest.fixture
def job(tmp_path):
    new_job = Job(tmp_path)
    shutil.copytree(PROJECT_ROOT / "scripts" / "slurm", new_job.project / "scripts" / "slurm")
    shutil.copytree(
        PROJECT_ROOT / "scripts" / "shell_functions", new_job.project / "scripts" / "shell_functions"
    )
    (tmp_path / "bin").mkdir()
    for name, body in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/usr/bin/env bash\n{body}\n")
        program.chmod(0o755)
    return new_job


def begin_a_run(job):
    (job.log / "runs" / "latest").mkdir(parents=True)


def test_every_node_gets_the_same_words_and_its_own_rank(job):
    job.run("run.sbatch", "a b", "$(x)", "", nodes=3)

    for rank in range(3):
        assert job.words(rank) == [
            "a b", "$(x)", "", "--num-nodes", "3", "--rank-weights", "1,1,1", "--worker", str(rank)
        ]  # fmt: skip


@pytest.mark.parametrize("weights", [("--rank-weights", "2,1"), ("--rank-weights=2,1",)])
def test_weights_that_were_given_are_kept(job, weights):
    job.run("run.sbatch", *weights, nodes=2)

    assert job.words() == [*weights, "--num-nodes", "2", "--worker", "0"]


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("more", [(), ("--resume",)])
def test_a_job_started_again_goes_on_with_the_run_it_began(job, joined, more):
    begin_a_run(job)
    words = [f"--log-path={job.log}"] if joined else ["--log-path", str(job.log)]

    job.run("run.sbatch", *words, *more, SLURM_RESTART_COUNT="1")

    assert job.words().count("--resume") == 1


def test_a_job_that_ended_before_its_run_began_starts_it_anew(job):
    job.run("run.sbatch", "--log-path", str(job.log), SLURM_RESTART_COUNT="1")

    assert "--resume" not in job.words()


def test_a_first_start_does_not_touch_the_run_of_before(job):
    begin_a_run(job)

    job.run("run.sbatch", "--log-path", str(job.log))

    assert "--resume" not in job.words()


def test_nodes_that_join_take_their_rank_from_the_run(job):
    job.run("join.sbatch", "--log-path", str(job.log), nodes=2, SLURM_RESTART_COUNT="1")

    for node in range(2):
        assert job.words(node) == ["--rl-phase", "rollout", "--join", "--log-path", str(job.log)]


@pytest.mark.parametrize("status", [0, 1, 75, 143])
def test_the_jobs_exit_code_is_the_masters(job, status):
    others = "[[ $SLURM_NODEID == 0 ]] || exit 137\n"

    assert job.run("run.sbatch", nodes=3, run_sh=f"{others} exit {status}") == status


def test_a_joining_node_receives_the_time_it_was_queued(job):
    note = 'echo "$RL_AGENT_QUEUED_AT" >"$HOME/queued"'
    assert job.run("join.sbatch", run_sh=note, STATE="2026-01-02T03:04:05", TZ="UTC") == 0
    assert (job.home / "queued").read_text() == "1767323045\n"


def test_the_exit_code_of_nodes_that_join_is_the_highest(job):
    assert job.run("join.sbatch", nodes=3, run_sh="exit $((70 + SLURM_NODEID))") == 72


def test_a_master_that_fails_ends_the_other_nodes(job):
    job.run("run.sbatch", nodes=2, run_sh="exit $((SLURM_NODEID == 0 ? 78 : 0))")

    assert job.calls_of("scancel") == "--signal=TERM 7.0\n"


@pytest.mark.parametrize(
    ("nodes", "run_sh"),
    [(2, "exit $SLURM_NODEID"), (2, "kill -TERM $PPID; exit 143"), (1, "exit 78")],
    ids=["a worker fails", "all were drained", "there are no others"],
)
def test_otherwise_nodes_end_by_themselves(job, nodes, run_sh):
    job.run("run.sbatch", nodes=nodes, run_sh=run_sh)

    assert job.calls_of("scancel") == ""


def test_a_drained_job_goes_back_into_the_queue(job):
    job.run("run.sbatch", run_sh="exit 143")

    assert job.requeued == "requeue 7\n"


def test_a_drained_task_of_an_array_takes_no_other_with_it(job):
    job.run("join.sbatch", run_sh="exit 143", SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="2")

    assert job.requeued == "requeue 7_2\n"


def test_a_job_that_was_cancelled_meanwhile_stays_cancelled(job):
    job.run("run.sbatch", run_sh="exit 143", STATE="COMPLETING")

    assert job.requeued == ""


@pytest.mark.parametrize("status", [0, 1, 70, 75, 130])
def test_only_a_drained_job_goes_back_into_the_queue(job, status):
    job.run("run.sbatch", run_sh=f"exit {status}")

    assert job.requeued == ""


def test_a_node_whose_processes_got_term_before_it_counts_as_drained(job):
    assert job.run("run.sbatch", run_sh="kill -TERM $PPID; exit 70") == 143
    assert job.requeued == "requeue 7\n"


def test_a_run_that_finished_in_spite_of_term_is_finished(job):
    assert job.run("run.sbatch", run_sh="kill -TERM $PPID; exit 0") == 0
    assert job.requeued == ""


def test_a_copied_file_says_where_it_belongs(job):
    assert job.run("run.sbatch", SUBMITTED="/elsewhere/run.sbatch") == 78
