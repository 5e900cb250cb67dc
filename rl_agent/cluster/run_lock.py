"""One live run a log path: `run.lock` names the driver that uses it.

The lock is a claim by pid and start time, not an open file: a driver that was killed holds nothing, and no
child of it can keep the lock by accident. On another host the claim cannot be verified and is believed.
"""

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from rl_agent.cluster.flags import write_whole
from rl_agent.cluster.processes import is_same_process, stat_of
from rl_agent.errors import ConfigError

_GUARD_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Owner:
    host: str
    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> "Owner":
        stat = stat_of(pid)
        return cls(socket.gethostname(), pid, stat.start_ticks if stat else 0)


def lock_path(log_path: Path) -> Path:
    return log_path / "run.lock"


def check_free(log_path: Path) -> None:
    """Raises `ConfigError` that names the owner if a live run uses `log_path`."""
    path = lock_path(log_path)
    try:
        owner = Owner(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return
    if owner.host != socket.gethostname():
        raise ConfigError(
            f"--log-path {log_path} is used by process {owner.pid} on {owner.host};"
            f" if that run is gone, remove {path}"
        )
    if owner.pid != os.getpid() and is_same_process(owner.pid, owner.start_ticks):
        raise ConfigError(
            f"--log-path {log_path} is used by another run, process {owner.pid} on this host;"
            " stop it or choose another log path"
        )


def claim(log_path: Path, driver_pid: int) -> None:
    """Make `driver_pid` the owner; of two that try at once, one gets the error of `check_free`."""
    from filelock import FileLock, Timeout

    guard = FileLock(str(lock_path(log_path)) + ".guard", timeout=_GUARD_TIMEOUT_S)
    try:
        with guard:
            check_free(log_path)
            write_whole(lock_path(log_path), asdict(Owner.of(driver_pid)))
    except Timeout as error:
        raise ConfigError(f"another start holds {guard.lock_file}; try again") from error
