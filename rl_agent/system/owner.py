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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout, lock_descriptor
from pydantic import TypeAdapter, ValidationError

from rl_agent.errors import RetryLater, StoreError
from rl_agent.system.files import write_whole
from rl_agent.system.processes import ProcessId

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


@contextmanager
def sole_owner(path: Path, named: str, advice: str) -> Iterator[None]:
    """Hold a file for this process, by a lock on FILE.lock that the kernel frees when its holder ends.

    Callers check first that the file is theirs, or new: the lock lies beside what a link leads to, and one
    beside a file of the system (`/etc/passwd.lock`) would keep the system's own programs from it.
    `named` is the file in the user's words: `journal=FILE`. On NFS the lock holds between hosts where the
    mount has locks (not with `nolock`), and a host that is cut off keeps it until the server's own deadline.
    Raises RetryLater if another has it, StoreError if the file system has no locks.
    """
    real = Path(os.path.realpath(path))  # whatever link leads to it
    lock_file = real.with_name(real.name + ".lock")
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        lock = owner_lock(lock_file, ProcessId.of(os.getpid()))
        lock.acquire()
    except Timeout:
        owner = read_owner(lock_file)
        holder = f"process {owner.pid} on {owner.host}" if owner else "another process"
        raise RetryLater(f"{named} is in use by {holder}: {advice}") from None
    except OSError as error:
        raise StoreError(f"{named} cannot be locked ({lock_file}): {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a file. Raises FileNotFoundError if there is none."""
    with path.open("rb+", buffering=0) as file:
        return not lock_descriptor(file.fileno(), blocking=False)
