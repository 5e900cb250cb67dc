"""Records which process owns a folder of weight versions, so that orphaned folders can be removed.

A store is locked while a process writes to it. Between two of them (a trainer is started again, an engine
takes its next version) it still is its run's: `owner.lock` names the process that the folder belongs to. Over
a pool a run's folder holds the stores of its worker and its trainer.
"""

import logging
import os
import shutil
import time
from pathlib import Path

from filelock import FileLock

from rl_agent.system.owner import is_locked, owner_lock, read_owner
from rl_agent.system.processes import ProcessId

_log = logging.getLogger(__name__)
OWNER = "owner.lock"
STORE_PREFIX = "rl-agent-"
"""The prefix of the folders in which this program keeps versions, below `base_folder`."""
_NEW_FOLDER_S = 60.0


def take(root: Path, pid: int) -> FileLock:
    """Lock the folder for this process, and record `pid` as its owner. Raises filelock.Timeout if locked."""
    lock = owner_lock(root / OWNER, ProcessId.of(pid))
    lock.acquire()
    return lock


def remove_orphaned(base: Path) -> list[Path]:
    """Remove this user's stores below `base` whose owners do not run any more; which they were."""
    removed = []
    for folder in base.glob(f"{STORE_PREFIX}*/"):
        try:
            status = folder.stat()
            if status.st_uid == os.getuid() and not _is_in_use(folder, time.time() - status.st_mtime):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
                _log.info("%s is removed: its owner no longer runs", folder)
        except OSError:  # it goes away, or is not to be read
            continue
    return removed


def _is_in_use(folder: Path, age_s: float) -> bool:
    lock = folder / OWNER
    owner = read_owner(lock)
    if owner is not None and (owner.is_running or not owner.is_here):
        return True
    try:
        return is_locked(lock)
    except FileNotFoundError:
        # Either it was just made, or it holds stores.
        return age_s < _NEW_FOLDER_S or any(_is_in_use(inner, age_s) for inner in folder.glob("*/"))
