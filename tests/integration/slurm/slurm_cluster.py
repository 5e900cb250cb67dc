"""A real Slurm on this machine: Debian's daemons over a configuration in a temporary folder.

Nothing of an installed Slurm is used but its programs: the daemons listen on free ports of the loopback, keep
their state in the folder, run as the caller, and authenticate by their own munge. They find a job's processes
in /proc, which takes neither root nor cgroups.
"""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.marked_processes import processes_with
from tests.support.ports import quiet_ports

START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 20
KILL_WAIT_S = 15
"""Seconds between TERM and KILL for a cancelled job: as long as run.sh may take to stop."""

DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "srun", "scancel", "scontrol", "squeue")
PROGRAM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # Debian puts daemons where users do not look

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SchedulerParameters=bf_interval=1,sched_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
TaskProlog={folder}/task_prolog
ReturnToService=2
KillWait={kill_wait_s}
"""
NODE = "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 Gres=gpu:8 State=UNKNOWN\n"
GPUS = "Name=gpu File={folder}/gpu[0-7]\n"
"""Files that are no devices: jobs get the numbers of eight GPUs per node, and none is there."""
PARTITIONS = """\
PartitionName=main Nodes=ALL Default=YES State=UP PriorityTier=2 PreemptMode=OFF
PartitionName=gpu Nodes=ALL State=UP PriorityTier=2 PreemptMode=OFF
PartitionName=preemptible Nodes=ALL State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
"""

TASK_PROLOG = """\
#!/bin/sh
# What is written here becomes the task's environment. The nodes are one host: each has a port for its engine.
read -r port <"{folder}/engine-port-$SLURMD_NODENAME"
echo "export HYDRA_OVERRIDES=engine.port=$port"
"""


class SlurmUnavailable(Exception):
    """Slurm cannot be started here, and why."""


class SlurmCluster:
    """A controller and `num_nodes` nodes, n0, n1, …, as a context manager."""

    def __init__(self, folder: Path, num_nodes: int):
        self.folder = folder
        self.nodes = [f"n{index}" for index in range(num_nodes)]
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "SlurmCluster":
        missing = [name for name in (*DAEMONS, *CLIENTS) if not shutil.which(name, path=PROGRAM_PATH)]
        if missing:
            raise SlurmUnavailable(
                f"{', '.join(missing)} not found; as root:"
                " apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
            )
        self._configure()
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def environ(self) -> dict[str, str]:
        """Variables with which a client finds this cluster, and the mark of all that was started by it."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(self, *words: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
        """Run a client of Slurm; returns its stdout."""
        done = subprocess.run(
            words,
            env={**(os.environ if environ is None else environ), **self.environ},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout.strip()

    def engine_port(self, node: str) -> int:
        return int((self.folder / f"engine-port-{node}").read_text())

    def field_of(self, job: str, field: str) -> str:
        """A field of `scontrol show job`, which remembers a job for minutes after its end."""
        words = self.call("scontrol", "show", "job", job).split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{field}="))

    def wait_for_state(self, job: str, *states: str, timeout_s: float = 60) -> None:
        wait_until(
            lambda: self.field_of(job, "JobState") in states,
            timeout_s,
            lambda: f"job {job} to be {states}; it is {self.field_of(job, 'JobState')}",
        )

    def end_jobs(self) -> None:
        """Cancel every job; those that are not gone at the deadline are left to `__exit__`."""
        self.call("scancel", "--user", getpass.getuser())
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self.call("squeue", "--noheader") and time.monotonic() < deadline:
            time.sleep(0.1)

    def processes(self) -> dict[int, str]:
        """Living processes of this cluster and its jobs, found by a variable that all inherit."""
        return processes_with(f"SLURM_CONF={self.environ['SLURM_CONF']}")

    def _configure(self) -> None:
        host, count = socket.gethostname().split(".")[0], len(self.nodes)
        port, *ports = quiet_ports(1 + 2 * count)
        (self.folder / "state").mkdir(parents=True)
        text = CONFIGURATION.format(
            host=host, port=port, user=getpass.getuser(), folder=self.folder, kill_wait_s=KILL_WAIT_S
        )
        for node, port, engine_port in zip(self.nodes, ports[:count], ports[count:], strict=True):
            (self.folder / f"spool-{node}").mkdir()
            (self.folder / f"engine-port-{node}").write_text(f"{engine_port}\n")
            text += NODE.format(node=node, host=host, port=port)
        task_prolog = self.folder / "task_prolog"
        task_prolog.write_text(TASK_PROLOG.format(folder=self.folder))
        task_prolog.chmod(0o755)
        (self.folder / "slurm.conf").write_text(text + PARTITIONS)
        (self.folder / "gres.conf").write_text(GPUS.format(folder=self.folder))
        for number in range(8):
            (self.folder / f"gpu{number}").touch()
        # Before 24.05 none cannot be named; the old kind is loaded then, and touches nothing.
        kind = "disabled" if slurm_version() >= (24, 5) else "cgroup/v1"
        (self.folder / "cgroup.conf").write_text(f"CgroupPlugin={kind}\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)

    def _start(self) -> None:
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{name}" for option, name in files.items()]
        self._start_daemon("munged", "munged", "--foreground", "--force", *options)
        self._wait_started("munged", (self.folder / "munge.socket").exists)
        configuration = self.environ["SLURM_CONF"]
        self._start_daemon("slurmctld", "slurmctld", "-D", "-f", configuration)
        for node in self.nodes:
            self._start_daemon(node, "slurmd", "-D", "-N", node, "-f", configuration)
        self._wait_started("slurmctld", self._is_idle)

    def _start_daemon(self, name: str, *words: str) -> None:
        program = shutil.which(words[0], path=PROGRAM_PATH)
        assert program is not None
        with (self.folder / f"{name}.log").open("wb") as log:
            self.daemons[name] = subprocess.Popen(
                [program, *words[1:]],
                env={**os.environ, **self.environ},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _wait_started(self, name: str, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_ready():
            dead = [daemon_name for daemon_name, daemon in self.daemons.items() if daemon.poll() is not None]
            if dead or time.monotonic() > deadline:
                name = dead[0] if dead else name
                last = (self.folder / f"{name}.log").read_text(errors="replace")[-400:]
                raise SlurmUnavailable(f"{name} does not start; its log ends: {last}")
            time.sleep(0.05)

    def _is_idle(self) -> bool:
        answer = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %t"],
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
        )
        return answer.returncode == 0 and answer.stdout.split("\n")[:-1] == [f"{n} idle" for n in self.nodes]

    def _stop(self) -> None:
        """End all jobs, then the daemons, then what carries this cluster's mark and still lives."""
        if "slurmctld" in self.daemons and self.daemons["slurmctld"].poll() is None:
            self.end_jobs()
        for daemon in reversed(self.daemons.values()):
            if daemon.poll() is None:
                daemon.terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.processes(), STOP_TIMEOUT_S, lambda: f"the end of {self.processes()}")


def slurm_version() -> tuple[int, ...]:
    """Year and month, as in (22, 5)."""
    program = shutil.which("slurmd", path=PROGRAM_PATH) or "slurmd"
    version = subprocess.run([program, "-V"], capture_output=True, text=True, timeout=START_TIMEOUT_S)
    return tuple(int(part) for part in version.stdout.split()[-1].split(".")[:2])


def wait_until(condition: Callable[[], bool], timeout_s: float, words: Callable[[], str]) -> None:
    """`words` says what is waited for, at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {words()}"
        time.sleep(0.1)
