"""Removes locks of torch's extension builds whose process was killed.

DeepSpeed compiles an extension at its first use on a machine. torch guards the build by a file that exists
during the compilation. A process that is killed leaves the file, and later ones wait for it for ever.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

UNTOUCHED_S = 120.0
"""A build of another machine, on a shared home, cannot be observed; without writes for so long it is over."""


def remove_abandoned_locks(
    environ: Mapping[str, str],
    log: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Remove abandoned locks; returns once only running processes of this machine have locks."""
    for lock in sorted(builds_folder(environ).glob("**/lock")):
        is_logged = False
        while lock.exists() and not _is_held(lock):
            if (left_s := UNTOUCHED_S - (clock() - _last_change(lock.parent))) <= 0:
                log(f"removing {lock}: the process that compiled there is gone")
                lock.unlink(missing_ok=True)
                break
            if not is_logged:
                is_logged = True
                log(f"{lock}: no process of this machine compiles there; removing it in {left_s:.0f} s")
            sleep(1.0)


def builds_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder in which torch builds extensions, as `torch.utils.cpp_extension` does."""
    if named := environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(named)
    caches = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "torch_extensions"


def _is_held(lock: Path) -> bool:
    """Return whether a process of this machine has the lock open, as its maker does until it removes it."""
    try:
        sought = lock.stat()
    except FileNotFoundError:
        return False
    return any((status.st_dev, status.st_ino) == (sought.st_dev, sought.st_ino) for status in _open_files())


def _open_files() -> Iterator[os.stat_result]:
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            yield descriptor.stat()
        except OSError:
            continue  # it ended, or is somebody else's


def _last_change(folder: Path) -> float:
    changes = [folder.stat().st_mtime]
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # a compiler makes and removes files meanwhile
            changes.append(path.lstat().st_mtime)
    return max(changes)
