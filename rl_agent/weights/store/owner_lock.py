"""Records which process owns a folder of weight versions, so that orphaned folders can be removed.

A store is locked while a process writes to it. Between two of them (a trainer is started again, an engine
takes its next version) it still is its run's: `owner.lock` names the process that the folder belongs to. Over
a pool a run's folder holds the stores of its worker and its trainer.
"""

import fcntl
import json
import logging
import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path

from rl_agent.cluster.shared_fs.run_lock import Owner, lives, read_owner

_log = logging.getLogger(__name__)
OWNER = "owner.lock"
STORE_PREFIX = "rl-agent-"
"""Of the folders in which this program keeps versions, below `base_folder`."""
_NEW_FOLDER_S = 60.0


def take(root: Path, pid: int) -> int:
    """Lock the folder for this process, and let it be that of `pid`. Raises BlockingIOError."""
    descriptor = os.open(root / OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(Owner.of(pid))).encode(), 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def remove_orphaned(base: Path) -> list[Path]:
    """Remove this user's stores below `base` whose owners do not run any more; which they were."""
    removed = []
    for folder in base.glob(f"{STORE_PREFIX}*/"):
        try:
            status = folder.stat()
            if status.st_uid == os.getuid() and not _is_in_use(folder, time.time() - status.st_mtime):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
                _log.info("%s is removed: who left it does not run any more", folder)
        except OSError:  # it goes away, or is not to be read
            continue
    return removed


def _is_in_use(folder: Path, age_s: float) -> bool:
    lock = folder / OWNER
    owner = read_owner(lock)
    if owner is not None and (lives(lock) or not owner.is_here):
        return True
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        # Either it was just made, or it holds stores. One from the future: the clock was set back.
        return abs(age_s) < _NEW_FOLDER_S or any(_is_in_use(inner, age_s) for inner in folder.glob("*/"))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
