"""Jobs that a test submits to its own Slurm, and what became of them."""

import json
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rl_agent.paths import PROJECT_ROOT
from tests.integration.lacking import skip_lacking
from tests.integration.slurm.slurm_cluster import SlurmCluster, SlurmUnavailable, wait_until

SLURM_FILES = PROJECT_ROOT / "scripts" / "slurm"
NUM_NODES = 3


@dataclass(frozen=True, slots=True)
class Jobs:
    """The sbatch files over the paths of one test."""

    cluster: SlurmCluster
    home: Path
    """Holds the folders `data` and `log`."""
    settings: tuple[str, ...]
    """Words of every run beside its paths."""
    environ: dict[str, str]
    living: Callable[[], Sized]
    """Processes of the test's runs that still live."""

    def run(self, *words: str, options: Sequence[str] = (), **variables: str) -> str:
        """Submit run.sbatch; returns the job's number."""
        return self._submit("run.sbatch", (*words, *self.settings), options, variables)

    def join(self, options: Sequence[str] = (), **variables: str) -> str:
        return self._submit("join.sbatch", (), options, variables)

    def _submit(
        self, file: str, words: Sequence[str], options: Sequence[str], variables: dict[str, str]
    ) -> str:
        sbatch = ["sbatch", "--parsable", f"--output={self.home}/%j.out", *options, str(SLURM_FILES / file)]
        paths = ["--data-path", str(self.home / "data"), "--log-path", str(self.log)]
        return self.cluster.call(*sbatch, *paths, *words, environ=self.environ | variables)

    def occupy(self, *nodes: str) -> str:
        """Someone else's short job on these nodes, which goes before preemptible ones."""
        wanted = ("--exclusive", f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}")
        return self.cluster.call("sbatch", "--parsable", *wanted, "--output=/dev/null", "--wrap=sleep 1")

    def state(self, job: str) -> str:
        return self.cluster.field_of(job, "JobState")

    def output(self, job: str) -> str:
        path = self.home / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def wait(self, job: str, state: str, timeout_s: float = 60) -> None:
        """Wait until the job is in that state and all that it started is gone."""
        self.wait_for(
            lambda: self.cluster.field_of(job, "JobState") == state, f"to be {state}", job, timeout_s
        )
        self.wait_for(lambda: not self.living(), "to leave no process", job, 20)

    def wait_for(self, condition: Callable[[], bool], words: str, job: str, timeout_s: float = 60) -> None:
        wait_until(condition, timeout_s, lambda: f"job {job} {words}; it said: {self.output(job)[-3000:]}")

    @property
    def log(self) -> Path:
        return self.home / "log"

    @property
    def plan(self) -> dict[str, Any]:
        return json.loads((self.log / "runs" / "latest" / "plan.json").read_text())


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    try:
        with SlurmCluster(tmp_path_factory.mktemp("slurm") / "cluster", NUM_NODES) as cluster:
            yield cluster
    except SlurmUnavailable as reason:
        skip_lacking(f"Slurm cannot start here: {reason}")
