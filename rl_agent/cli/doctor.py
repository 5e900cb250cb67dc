"""The verb `doctor` reports from the shared folder alone who lives, who waits for whom, and what to do."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from rl_agent.cli._options import add_log_path, log_folder, verb_parser
from rl_agent.cluster.member import stacks
from rl_agent.cluster.member.look import look_twice
from rl_agent.cluster.protocol.diagnosis import FolderPolls, diagnose
from rl_agent.cluster.shared_fs.folder import SharedFolder
from rl_agent.monitor.report import failure_lines, reward_rows
from rl_agent.paths import RunPaths
from rl_agent.system.processes import members, pid_space, read_groups
from rl_agent.system.terminal import one_line

SUMMARY = "show which nodes of a run are alive, which one waits for which, and what to do"
EXAMPLE = """examples:
  rl-agent doctor --log-path /shared/exp1
  rl-agent doctor --log-path /shared/exp1 --stacks     # on the host that hangs
"""
_PY_SPY_TIMEOUT_S = 20


def main(argv: list[str]) -> int:
    """Prints the diagnosis; returns 1 where there is something to do."""
    parser = verb_parser("doctor", SUMMARY, EXAMPLE)
    add_log_path(parser)
    parser.add_argument(
        "--stacks",
        action="store_true",
        help="also print Python stacks of the run's processes on this host",
    )
    options = parser.parse_args(argv)
    log_path = log_folder(options.log_path)
    look = look_twice(SharedFolder(log_path))
    seen, advice = diagnose(look)
    try:
        failures = failure_lines(reward_rows(RunPaths(log_path)))
    except OSError as error:  # the rest of the diagnosis counts more
        failures = [f"{error.filename}: {error.strerror}"]
    print("\n".join(map(one_line, [*seen, *failures])))
    well = "nothing: the run is done" if look.view.ended else "nothing: the run goes on"
    print("\n".join(["", "what to do", *(f"  - {one_line(line)}" for line in advice or [well])]))
    if options.stacks:
        for line in local_stacks(look, RunPaths(log_path)):
            print(line)
    return 1 if advice else 0


def local_stacks(look: FolderPolls, paths: RunPaths) -> Iterator[str]:
    """Yield the stacks of this host's processes: nodes write their own, py-spy reads those of all others."""
    here = [record for record in look.records.values() if record.process.is_running]
    for record in here:
        yield f"\nrank {record.rank}, node process {record.process.pid}, at: {record.doing}"
        yield stacks.collect(record)
    others = _other_processes(paths.run_dir(look.view.run_id), {record.process.pid for record in here})
    py_spy = shutil.which("py-spy")
    if py_spy is None and others:
        yield "\npy-spy is not installed: no stacks of " + ", ".join(
            f"{name} ({pid})" for name, pid in others
        )
    for name, pid in others if py_spy else ():
        yield f"\n{name}, process {pid}"
        yield _dump(str(py_spy), pid)
    if not here and not others:
        yield f"\nno process of this run is on this host ({socket.gethostname()})"


def _other_processes(run_dir: Path, excluded_pids: set[int]) -> list[tuple[str, int]]:
    """Group and pid of what the run started on this host."""
    folders = (run_dir / "groups" / pid_space()).glob("*/")
    groups = [group for folder in folders for group in read_groups(folder)]
    return [(group.name, pid) for group in groups for pid in members(group) if pid not in excluded_pids]


def _dump(py_spy: str, pid: int) -> str:
    try:
        done = subprocess.run(
            [py_spy, "dump", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=_PY_SPY_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "py-spy did not answer"
    return done.stdout or done.stderr
