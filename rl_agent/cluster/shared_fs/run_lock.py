"""Keeps two runs out of one log path: `run.lock` names the run.sh that uses it.

The lock is a record of a process (see `owner`), not an open file: a run.sh that was killed holds nothing, and
no child of it can keep the lock by accident. An owner on another host or in another container is judged by
the heartbeat of its run (`cluster/master.json`): a living run rewrites it within the lease.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from rl_agent.errors import MachineError
from rl_agent.system.owner import read_owner, write_owner
from rl_agent.system.processes import ProcessId

_GUARD_TIMEOUT_S = 5.0
_POLL_S = 0.2


def lock_path(log_path: Path) -> Path:
    """Path of the file that names the owner of a log path."""
    return log_path / "run.lock"


def heartbeat_path(log_path: Path) -> Path:
    """Path of the file that the master of a run rewrites as long as it lives."""
    return log_path / "cluster" / "master.json"


def check_free(log_path: Path, lease_s: float) -> None:
    """Raises `MachineError` that names the owner if a living run uses `log_path`.

    Takes up to `lease_s` where the owner is on another host and its run shows no heartbeat.
    """
    owner = read_owner(lock_path(log_path))
    if owner is None or owner.pid == os.getpid():
        return
    if owner.is_running or (not owner.is_here and has_heartbeat(log_path, lease_s)):
        where = "this host" if owner.is_here else owner.host
        raise MachineError(
            f"--log-path {log_path} is used by another run, process {owner.pid} on {where};"
            " stop it or choose another log path"
        )


def has_heartbeat(
    log_path: Path,
    lease_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Return whether the run of `log_path` rewrites its heartbeat within `lease_s`, as soon as it does."""
    path, deadline = heartbeat_path(log_path), clock() + lease_s
    first = _content(path)
    if first is not None:
        sys.stderr.write(f"waiting up to {lease_s:.0f} s to see whether the run in {log_path} still lives\n")
    while first is not None and clock() < deadline:
        sleep(_POLL_S)
        if _content(path) not in (None, first):
            return True
    return False


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def claim(log_path: Path, driver_pid: int, lease_s: float) -> None:
    """Make `driver_pid` the owner; of two that try at once, one gets the error of `check_free`."""
    guard = FileLock(f"{lock_path(log_path)}.guard", timeout=_GUARD_TIMEOUT_S)
    try:
        with guard:
            check_free(log_path, lease_s)
            write_owner(lock_path(log_path), ProcessId.of(driver_pid))
    except Timeout as error:
        raise MachineError(
            f"--log-path {log_path}: another start of a run holds {guard.lock_file}; try again"
        ) from error
