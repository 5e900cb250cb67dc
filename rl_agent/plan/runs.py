"""The runs recorded under a log path: which one is the latest, what an earlier one left behind."""

import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from rl_agent.cluster.processes import GroupRecord, command_line, end_groups, members, read_groups
from rl_agent.config import Plan
from rl_agent.errors import ConfigError
from rl_agent.paths import RunPaths

LATEST = "latest"
LEFTOVER_GRACE_S = 5.0


def new_run_id() -> str:
    """UTC time and a random part: sortable, and unique where two start in one second."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"


def latest_plan(paths: RunPaths) -> Plan | None:
    """Plan of the run that started last; raises `ConfigError` if it cannot be read."""
    path = paths.run_dir(LATEST) / "plan.json"
    if not path.exists():
        return None
    try:
        return Plan.read(path)
    except ValueError as error:
        reason = " ".join(str(error).split())[:160]
        raise ConfigError(f"{path} cannot be read ({reason}); start without --resume") from error


def write_plan(plan: Plan) -> Path:
    """Write `plan.json` and its copy of this attempt, and make this run the latest."""
    folder = plan.paths.run_dir(plan.run_id)
    for part in (folder / "logs", groups_dir(folder)):
        part.mkdir(parents=True, exist_ok=True)
    plan.write(folder / f"plan-{plan.attempt}.json")
    plan.write(folder / "plan.json")
    link = folder.with_name(f".{LATEST}.{os.getpid()}")
    link.symlink_to(plan.run_id)
    link.rename(folder.with_name(LATEST))
    return folder / "plan.json"


def groups_dir(run_dir: Path) -> Path:
    """Where `start_group` records the process groups of this host."""
    return run_dir / "groups" / socket.gethostname()


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process group of a killed run that still lives on this host."""

    group: GroupRecord
    pids: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.group.name}: pid {self.pids[0]} ({command_line(self.pids[0])})"


def find_leftovers(paths: RunPaths) -> list[Leftover]:
    """Living groups that earlier runs of this log path recorded and that are verified to be theirs."""
    found = []
    runs = paths.run_dir(LATEST).parent
    for run in sorted(runs.iterdir()) if runs.is_dir() else ():
        if run.is_symlink():
            continue
        for group in read_groups(groups_dir(run)):
            pids = members(group)
            if pids:
                found.append(Leftover(group, tuple(pids)))
    return found


def end_leftovers(leftovers: list[Leftover]) -> None:
    """End them; raises `ConfigError` with the command to use if they do not go."""
    if leftovers and not end_groups((left.group for left in leftovers), LEFTOVER_GRACE_S):
        pids = " ".join(str(pid) for left in leftovers for pid in members(left.group))
        raise ConfigError(f"processes of an earlier run do not end: try kill -KILL {pids}")
