"""One live run a log path: `run.lock` names the driver that uses it.

The lock is a claim by pid and start time, not an open file: a driver that was killed holds nothing, and no
child of it can keep the lock by accident. An owner on another host or in another container is judged by the
heartbeat of its run (`cluster/master.json`): one that lives shows it within seconds, one that died does not
within the lease.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rl_agent.cluster.shared_fs.processes import is_same_process, pid_space, stat_of
from rl_agent.errors import MachineError
from rl_agent.files import write_whole

_GUARD_TIMEOUT_S = 5.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Owner:
    host: str
    """Or a container on it: `pid_space`."""
    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> "Owner":
        stat = stat_of(pid)
        return cls(pid_space(), pid, stat.start_ticks if stat else 0)

    @property
    def is_here(self) -> bool:
        return self.host == pid_space()


def lock_path(log_path: Path) -> Path:
    return log_path / "run.lock"


def heartbeat_path(log_path: Path) -> Path:
    """What the run of a log path rewrites as long as it lives."""
    return log_path / "cluster" / "master.json"


def read_owner(path: Path) -> Owner | None:
    """None if there is no such file, or nothing that can be read as an owner."""
    try:
        return Owner(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def lives(path: Path) -> bool:
    """Whether `path` names a process of this host that still runs."""
    owner = read_owner(path)
    return owner is not None and owner.is_here and is_same_process(owner.pid, owner.start_ticks)


def check_free(log_path: Path, lease_s: float) -> None:
    """Raises `ConfigError` that names the owner if a live run uses `log_path`.

    Takes up to `lease_s` where the owner is on another host and does not show itself.
    """
    owner = read_owner(lock_path(log_path))
    if owner is None or owner.pid == os.getpid():
        return
    if owner.is_here and is_same_process(owner.pid, owner.start_ticks):
        raise MachineError(
            f"--log-path {log_path} is used by another run, process {owner.pid} on this host;"
            " stop it or choose another log path"
        )
    if not owner.is_here and beats(log_path, lease_s):
        raise MachineError(
            f"--log-path {log_path} is used by another run, process {owner.pid} on {owner.host};"
            " stop it or choose another log path"
        )


def beats(
    log_path: Path,
    lease_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Whether the run of `log_path` shows a heartbeat within `lease_s`; returns as soon as it does."""
    path, deadline = heartbeat_path(log_path), clock() + lease_s
    first = _look(path)
    if first is not None:
        sys.stderr.write(f"looking up to {lease_s:.0f} s whether the run in {log_path} still lives\n")
    while first is not None and clock() < deadline:
        sleep(_POLL_S)
        if _look(path) not in (None, first):
            return True
    return False


def _look(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def claim(log_path: Path, driver_pid: int, lease_s: float) -> None:
    """Make `driver_pid` the owner; of two that try at once, one gets the error of `check_free`."""
    from filelock import FileLock, Timeout

    guard = FileLock(str(lock_path(log_path)) + ".guard", timeout=_GUARD_TIMEOUT_S)
    try:
        with guard:
            check_free(log_path, lease_s)
            write_whole(lock_path(log_path), json.dumps(asdict(Owner.of(driver_pid))))
    except Timeout as error:
        raise MachineError(f"another start holds {guard.lock_file}; try again") from error
