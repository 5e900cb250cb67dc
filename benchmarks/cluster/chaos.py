"""Loses nodes, disks and clocks at random instants of a short run of three nodes, and checks what is left.

    python benchmarks/cluster/chaos.py --runs 200 [--seed 0]

Every run is three real `run.sh` in phase `both` over one log path, one iteration, with engines and trainings
that cost nothing. The seed of a run chooses the fault, the phase and the instant in it, and repeats them:

    kill          SIGKILL to every process of a rank, as when its machine is taken away
    driver        SIGKILL to its run.sh alone
    freeze        SIGSTOP to every process of a rank; it wakes after the others are through
    disk full     the log path takes no more          (needs the right to mount; left out without it)
    read-only     the log path becomes read-only, as ext4 does after an error; what was not synced is gone
                  (the same)

In a quarter of the runs the wall clock of rank 1 is an hour late and that of rank 2 an hour early (as Python
sees it), in another quarter the shared folder shows what others wrote up to two seconds late. After the
fault every rank has to end within the deadline; then the same commands, with --resume if the run did not end
well, have to bring the iteration to its end. Checked: every task recorded exactly once, the model whole, no
process left, and the lost rank named by those that lived. Exit status 1 if anything is not so.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.cluster.loop_overhead import Cluster, require_training
from rl_agent.paths import PROJECT_ROOT
from rl_agent.system.flag_parser import FlagParser
from tests.support.cluster.simulated_cluster import read_episodes

NODES, TASKS = 3, 18
LEASE_S = 4.0
WORDS = ("--rl-phase", "both", "--eval-interval", "1", "--max-iterations", "1")
SETTINGS = (
    "env_config.train_tasks_rollout_size=-1",
    "env_config.test_tasks_rollout_size=-1",
    "env_config.server_size=2",
    "cluster.heartbeat_s=0.4",
    f"cluster.lease_s={LEASE_S}",
    "cluster.chunk_tasks=1",
    "cluster.start_timeout_s=20",
)
SKEW = """import os, time
_true, _skew_s = time.time, float(os.environ["CHAOS_SKEW_S"])
time.time = lambda: _true() + _skew_s
"""
LAG = """import os
from tests.support.cluster import lagging_folder
lagging_folder.install(os.environ)
"""
DISK_MIB = 1100
GRACE_S = 10.0
PHASES = {"start": (1, 4.0), "rollout": (4, 2.5), "evaluate": (2, 2.0), "update": (4, 2.5)}
"""Weights by which a phase is chosen, and the longest time after its beginning in seconds."""


@dataclass
class Outcome:
    seed: int
    fault: str
    rank: int
    phase: str
    conditions: str
    seconds: float = 0.0
    ended: str = ""
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        problems = "; ".join(self.problems) or "ok"
        return (
            f"{self.seed:>6} {self.fault:<10} {self.rank:>4}  {self.phase:<9} {self.conditions:<5}"
            f" {self.ended:<22} {self.seconds:>6.1f}  {problems}"
        )


class Run:
    """One run with one fault."""

    def __init__(self, home: Path, seed: int, *, deadline_s: float, disks: list[str]) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster(home, NODES, tasks=TASKS, overrides=SETTINGS)
        self.deadline_s = deadline_s
        faults = ["kill"] * 4 + ["driver"] * 2 + ["freeze"] * 2 + disks
        fault, rank = self.random.choice(faults), self.random.randrange(NODES)
        (phase,) = self.random.choices(list(PHASES), [weight for weight, _ in PHASES.values()])
        self.chosen, self.instant_s = phase, self.random.uniform(0, PHASES[phase][1])
        kind = self.random.randrange(4)
        conditions = {0: "skew", 1: "lag"}.get(kind, "")
        self.outcome = Outcome(seed, fault, rank, "", conditions)
        self.disk = make_disk(home / "disk", self.cluster.log, fault) if fault in disks else ()

    def environ(self, rank: int) -> dict[str, str]:
        more = {"ENGINE_PORT": str(self.cluster.ports[rank])}
        if self.outcome.conditions == "lag":
            more |= self._in_every_python(LAG, {"RL_AGENT_FOLDER_LAG": f"2:{self.outcome.seed}"})
        if self.outcome.conditions == "skew" and rank:
            more |= self._in_every_python(SKEW, {"CHAOS_SKEW_S": "-3600" if rank == 1 else "3600"})
        return more

    def _in_every_python(self, code: str, variables: dict[str, str]) -> dict[str, str]:
        """Return the variables with which every Python of a node runs `code` first."""
        folder = self.cluster.home / "first"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(code)
        return variables | {"PYTHONPATH": f"{folder}{os.pathsep}{PROJECT_ROOT}"}

    def start_all(self, *words: str) -> None:
        for rank in range(NODES):
            self.cluster.start(rank, *WORDS, *words, **self.environ(rank))

    def carry_out(self) -> Outcome:
        outcome, started = self.outcome, time.monotonic()
        self.start_all()
        self.wait_for_instant()
        outcome.phase = self.phase()
        frozen = self.do_harm()
        statuses = self.wait(except_for=frozen)
        self.undo_harm(frozen)
        statuses |= self.wait()
        outcome.ended = " ".join(f"{name[5:]}:{status}" for name, status in sorted(statuses.items()))
        problems = [f"{name} hangs" for name, status in statuses.items() if status is None]
        problems += self.unnamed(statuses)
        if not problems and statuses.get("rank-0") != 0:
            problems += self.resume()
        if not problems:
            problems += self.damage()
        if left := self.left_behind():
            problems.append(f"{left} processes left")
        outcome.problems, outcome.seconds = tuple(problems), time.monotonic() - started
        return outcome

    def wait_for_instant(self) -> None:
        deadline = time.monotonic() + self.deadline_s
        while self.chosen not in ("start", self.phase()) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(self.instant_s)

    def phase(self) -> str:
        lines = self.cluster.output("rank-0").splitlines()
        phases = [line.rpartition(": ")[2] for line in lines if ": iteration 1: " in line]
        return phases[-1] if phases else "start"

    def do_harm(self) -> list[int]:
        """Returns the processes that sleep now."""
        outcome, name = self.outcome, f"rank-{self.outcome.rank}"
        match outcome.fault:
            case "driver":
                self.cluster.processes[name].kill()
            case "disk full":
                fill(self.cluster.log / "filler")
            case "read-only":
                command("mount", "-o", "remount,abort", str(self.cluster.log))
            case _:
                pids = self.cluster.pids_of(name)
                send(pids, signal.SIGSTOP)
                if outcome.fault == "freeze":
                    return pids
                send(self.cluster.pids_of(name), signal.SIGKILL)
        return []

    def undo_harm(self, frozen: list[int]) -> None:
        send(frozen, signal.SIGCONT)
        if self.outcome.fault == "disk full":
            (self.cluster.log / "filler").unlink()
        elif self.outcome.fault == "read-only":
            repair(self.disk, self.cluster.log)

    def wait(self, except_for: list[int] = ()) -> dict[str, int | None]:
        sleeping = self.cluster.processes.pop(f"rank-{self.outcome.rank}") if except_for else None
        statuses = self.cluster.wait(self.deadline_s)
        if sleeping is not None:
            self.cluster.processes[f"rank-{self.outcome.rank}"] = sleeping
        return statuses

    def left_behind(self) -> int:
        """Processes that are there `GRACE_S` after the ranks; the guard of a killed run.sh takes a moment."""
        deadline = time.monotonic() + GRACE_S
        while (left := self.cluster.living()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return len(left)

    def unnamed(self, statuses: dict[str, int | None]) -> list[str]:
        """A survivor has to name whoever was lost in the middle of the run."""
        lost = f"rank-{self.outcome.rank}"
        if self.outcome.fault in ("disk full", "read-only") or statuses.get(lost) in (0, 75, 78):
            return []
        others = "".join(self.cluster.output(name) for name in statuses if name != lost)
        is_named = f"rank {self.outcome.rank}" in others or self.outcome.phase == "start"
        return [] if is_named else [f"{lost} is not named"]

    def resume(self) -> list[str]:
        """The same commands again, with --resume if the run had begun."""
        self.cluster.processes.clear()
        resume = ("--resume",) if (self.cluster.log / "runs" / "latest").exists() else ()
        self.start_all(*resume)
        statuses = self.cluster.wait(self.deadline_s)
        output = self.cluster.output("rank-0")
        if resume and "raise --max-iterations" in output:  # the last instant: there was nothing left to do
            return []
        bad = {name: status for name, status in statuses.items() if status != 0}
        self.outcome.ended += " resumed"
        return [f"the resume ended with {bad}"] if bad else []

    def damage(self) -> list[str]:
        """Faults of the iteration's data and of the model."""
        problems = []
        for split in ("train", "test"):
            wanted = Counter({f"{split}-{number}:0:0": 1 for number in range(TASKS)})
            counts = Counter(read_episodes(self.cluster, split, 1))
            if counts != wanted:
                lost, twice = (wanted - counts).total(), (counts - wanted).total()
                problems.append(f"{split}: {lost} lost, {twice} twice")
        from safetensors.numpy import load_file

        model = self.cluster.log / "model.pt"
        if model.resolve().name != "version-000001" or len(load_file(model / "model.safetensors")) != 2:
            problems.append("the model is not whole")
        return problems

    def end(self) -> None:
        self.cluster.end()
        if self.disk:
            subprocess.run(["umount", "-l", str(self.cluster.log)], check=False)


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def make_disk(image: Path, folder: Path, fault: str) -> tuple[str, ...]:
    """Mount an empty disk at `folder`; the words that mount it again."""
    folder.mkdir()
    words: tuple[str, ...] = ("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder))
    if fault == "read-only":
        with image.open("wb") as file:
            file.truncate(DISK_MIB << 20)
        command("mkfs.ext4", "-q", "-F", str(image))
        words = ("mount", "-o", "loop", str(image), str(folder))
    command(*words)
    return words


def repair(disk: tuple[str, ...], folder: Path) -> None:
    """Do an administrator's part after an error: unmount, check, mount."""
    command("umount", str(folder))
    subprocess.run(["e2fsck", "-fy", disk[-2]], check=False, capture_output=True)  # 1: it repaired something
    command(*disk)


def possible_disks() -> list[str]:
    """The faults of disks that this user and machine can bring about."""
    counts = []
    for fault in ("disk full", "read-only"):
        with tempfile.TemporaryDirectory() as folder:
            try:
                make_disk(Path(folder, "disk"), Path(folder, "log"), fault)
                command("umount", str(Path(folder, "log")))
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"without the fault {fault!r}: {error}")
                continue
            counts.append(fault)
    return counts


def fill(path: Path) -> None:
    """Take what is free, down to the last few bytes; without writing it where the file system can."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 26, 1 << 20, 1 << 12):
            try:
                while True:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
            except OSError:
                continue


def undisturbed_s(deadline_s: float) -> float:
    """Seconds of a run that nothing happens to."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), NODES, tasks=TASKS, overrides=SETTINGS)
        started = time.monotonic()
        try:
            for rank in range(NODES):
                cluster.start(rank, *WORDS, ENGINE_PORT=str(cluster.ports[rank]))
            statuses = cluster.wait(deadline_s)
            if any(statuses.values()) or None in statuses.values():
                raise SystemExit(f"an undisturbed run fails: {statuses}\n{cluster.output('rank-0')}")
            duration_s = time.monotonic() - started
            require_training(cluster, iterations=1)
            return duration_s
        finally:
            cluster.end()


def main() -> int:
    parser = FlagParser(
        description=__doc__,
        epilog="example:\n  python benchmarks/cluster/chaos.py --runs 1 --seed 17",
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first run; each later one has the next")
    parser.add_argument("--deadline-s", type=float, default=90.0, help="for the end of every rank")
    parser.add_argument("--keep", type=Path, help="folder for the logs of runs that went wrong")
    options = parser.parse_args()
    disks = possible_disks()
    duration_s = undisturbed_s(options.deadline_s)
    print(f"{NODES} nodes, lease {LEASE_S:g} s; an undisturbed run takes {duration_s:.1f} s", flush=True)
    print(f"{'seed':>6} {'fault':<10} rank  phase     cond  {'exit statuses':<22} {'s':>6}", flush=True)
    outcomes = []
    for seed in range(options.seed, options.seed + options.runs):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            run = Run(Path(folder), seed, deadline_s=options.deadline_s, disks=disks)
            try:
                outcomes.append(run.carry_out())
                if outcomes[-1].problems and options.keep:
                    shutil.copytree(folder, options.keep / str(seed), symlinks=True, dirs_exist_ok=True)
            finally:
                run.end()
        print(outcomes[-1], flush=True)
    show(outcomes)
    return any(outcome.problems for outcome in outcomes)


def show(outcomes: list[Outcome]) -> None:
    print(f"\n{'fault':<12}{'runs':>6}{'ended well':>12}{'resumed':>9}{'wrong':>7}")
    for fault in sorted({outcome.fault for outcome in outcomes}):
        of_fault = [outcome for outcome in outcomes if outcome.fault == fault]
        resumed = sum("resumed" in outcome.ended for outcome in of_fault)
        wrong = sum(bool(outcome.problems) for outcome in of_fault)
        print(f"{fault:<12}{len(of_fault):>6}{len(of_fault) - resumed - wrong:>12}{resumed:>9}{wrong:>7}")
    phases = Counter(outcome.phase for outcome in outcomes)
    print("instants: " + ", ".join(f"{phase} {count}" for phase, count in sorted(phases.items())))


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
