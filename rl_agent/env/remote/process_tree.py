"""Processes below others, as `/proc` shows them: what they use, and the end of all of them.

A tree is found by who is whose parent, so it holds what has left its process group or session, too.
"""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _stats() -> dict[int, tuple[int, int]]:
    """Return the parent and the resident bytes of every process that has not ended."""
    found: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - a guard imports as little as it can
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            found[int(name)] = (int(fields[1]), int(fields[21]) * _PAGE_BYTES)
    return found


def descendants(root: int) -> list[int]:
    """Return the processes below one, itself left out."""
    return _below(root, _children(_stats()))


def marked(mark: bytes) -> list[int]:
    """Return the processes that were started with `mark`, a NAME=VALUE, among their environment variables."""
    found = []
    for pid in _stats():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
                if mark in file.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            continue
    return found


def resident_bytes(roots: Iterable[int]) -> dict[int, int]:
    """Return the resident memory of each process and all below it; pages that they share count in each."""
    stats = _stats()
    children = _children(stats)
    return {
        root: sum(stats[pid][1] for pid in (root, *_below(root, children)) if pid in stats) for root in roots
    }


def end_descendants(limit_s: float) -> bool:
    """Kill and reap all below this process until there is nobody; False if some are left at the limit.

    For a subreaper: there, those whose parents have ended become its children. A look at `/proc` may miss one
    that changes its parent meanwhile, so only the kernel's word that there is no child counts.
    """
    deadline = time.monotonic() + limit_s
    while _has_children():
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap()
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def reap() -> dict[int, int]:
    """Collect children that have ended; returns the exit code of each, 128 and the number for a signal."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(found[1])
            ended[found[0]] = 128 - code if code < 0 else code
    return ended


def _children(stats: dict[int, tuple[int, int]]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in stats.items():
        children.setdefault(parent, []).append(pid)
    return children


def _below(root: int, children: dict[int, list[int]]) -> list[int]:
    found, waiting = list[int](), list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, ())
    return found
