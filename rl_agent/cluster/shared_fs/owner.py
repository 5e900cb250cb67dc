"""Records and locks that name the process which owns a file or a folder.

A record (`write_owner`) is for an owner other than the process that writes it: `run.lock` names the run.sh
of a log path. It holds as long as that process runs, so one that was killed owns nothing.

A lock (`owner_lock`) is `flock` by filelock, in a file that also holds the record of its owner. The kernel
frees it when its holder ends. On NFS it is a lock of the server, on Lustre it needs the mount option `flock`;
with `nolock`, `local_lock` or `localflock` it reaches one host only. So no lock of this project protects data
between hosts: what nodes agree on is decided by atomic names in the shared folder (`folder`).
"""

import json
import os
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, lock_descriptor
from pydantic import TypeAdapter, ValidationError

from rl_agent.cluster.shared_fs.processes import ProcessId
from rl_agent.files import write_whole

_RECORD = TypeAdapter(ProcessId)


def read_owner(path: Path) -> ProcessId | None:
    """Read the owner that a file names; None if there is no such file or no owner in it."""
    try:
        return _RECORD.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def write_owner(path: Path, owner: ProcessId) -> None:
    """Let a file name its owner."""
    write_whole(path, json.dumps(asdict(owner)))


def is_owner_running(path: Path) -> bool:
    """Return whether a file names a process that runs on this host."""
    owner = read_owner(path)
    return owner is not None and owner.is_running


def owner_lock(path: Path, owner: ProcessId) -> FileLock:
    """Make a lock, not yet acquired, whose file names `owner` while and after it is held.

    `acquire` tries once. It raises filelock.Timeout if another process has the lock, and OSError where the
    file system has no locks.
    """

    def write_record(descriptor: int) -> None:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(owner)).encode(), 0)

    return FileLock(path, timeout=0, mode=0o600, thread_local=False, on_acquired=write_record)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file. Raises FileNotFoundError if there is no such file."""
    with path.open("rb+", buffering=0) as file:
        return not lock_descriptor(file.fileno(), blocking=False)
