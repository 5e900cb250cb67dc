"""The runs recorded under a log path: which one is the latest, what an earlier one left behind."""

import glob
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from rl_agent.config.plan import Plan
from rl_agent.errors import ConfigError, MachineError, in_one_line
from rl_agent.paths import RunPaths
from rl_agent.system.owner import is_owner_running, write_owner
from rl_agent.system.processes import (
    GroupRecord,
    ProcessId,
    command_line,
    end_groups,
    members,
    pid_space,
    read_groups,
)

LATEST = "latest"
LEFTOVER_GRACE_S = 5.0


def new_run_id() -> str:
    """UTC time and a random part: sortable, and wandb keeps apart a hundred that start in one second."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}"


def latest_plan(paths: RunPaths) -> Plan | None:
    """Read the plan of the run that started last. Raises `ConfigError` if it cannot be read."""
    path = paths.run_dir(LATEST) / "plan.json"
    if not path.exists():
        return None
    try:
        return Plan.read(path)
    except ValueError as error:
        raise ConfigError(
            f"{path} cannot be read: it is of a release with other settings, or damaged"
            f" ({in_one_line(error, 160)}); start without --resume, which begins a new iteration"
        ) from error


def write_plan(plan: Plan, driver_pid: int | None) -> Path:
    """Write this node's plan; rank 0 writes `plan.json`, and makes this run the latest."""
    folder = plan.paths.run_dir(plan.run_id)
    for part in (plan.logs_dir, plan.groups_dir(pid_space())):
        part.mkdir(parents=True, exist_ok=True)
    if driver_pid is not None:
        write_owner(_driver_file(plan.groups_dir(pid_space())), ProcessId.of(driver_pid))
    if not plan.is_master:
        path = folder / f"plan-{plan.attempt}-{plan.node}.json"
        plan.write(path)
        return path
    plan.write(folder / f"plan-{plan.attempt}.json")
    plan.write(folder / "plan.json")
    link = folder.with_name(f".{LATEST}.{os.getpid()}")
    link.symlink_to(plan.run_id)
    link.rename(folder.with_name(LATEST))
    return folder / "plan.json"


def _driver_file(groups: Path) -> Path:
    return groups.with_name(groups.name + ".driver")


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process group of a killed run that still lives on this host."""

    group: GroupRecord
    pids: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.group.name}: pid {self.pids[0]} ({command_line(self.pids[0])})"


def find_leftovers(paths: RunPaths) -> list[Leftover]:
    """Living groups of this host whose driver is gone, verified to be what a run of this log path started.

    Other ranks of a run may live on the same host; their drivers do.
    """
    leftovers = []
    runs = paths.run_dir(LATEST).parent
    for folder in sorted(runs.glob(f"*/groups/{glob.escape(pid_space())}/*/")):
        if folder.parents[2].is_symlink() or is_owner_running(_driver_file(folder)):
            continue
        for group in read_groups(folder):
            pids = members(group)
            if pids:
                leftovers.append(Leftover(group, tuple(pids)))
    return leftovers


def end_leftovers(leftovers: list[Leftover]) -> None:
    """End them; raises `ConfigError` with the command to use if they do not go."""
    if leftovers and not end_groups((left.group for left in leftovers), LEFTOVER_GRACE_S):
        pids = " ".join(str(pid) for left in leftovers for pid in members(left.group))
        raise MachineError(f"processes of an earlier run do not end: try kill -KILL {pids}")
