"""Runs one Chromium and answers for its end: `guard.py OWNER_PID MAX_RENDERER_MIB PID_FILE COMMAND…`.

The browser library starts this file as if it were the browser: the pipes of the browser's protocol, file
descriptors 3 and 4, go on to Chromium, and all are one process group, of which the guard is the leader.

    owner (the process with the environments) ─► the library's driver ─► guard ─► Chromium ─► renderers

- The owner or the driver ends, however it ends: the guard kills and reaps all that it started.
- The guard is told to end (TERM), and does the same; if it is killed, the kernel ends Chromium.
- A renderer takes more memory than it may: that renderer is killed, which its page shows as a crash.

Only the standard library is used here, and no package of ours: it starts in some hundredths of a second.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_EVERY_MS = 500
_REAP_S = 2.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Return the processes that a process started and that are still there."""
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += (int(child) for child in (thread / "children").read_text().split())
    except OSError:  # it has ended
        pass
    return found


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    found = [pid]
    for each in found:
        found += children(each)
    return found


def resident_bytes(pid: int) -> int:
    """Return the memory that a process has to itself; 0 where it has ended."""
    try:
        _size, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE


def is_renderer(pid: int) -> bool:
    """Tell whether a process shows pages."""
    try:
        return b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def end_large_renderers(pid: int, limit_bytes: int) -> None:
    """Kill the renderers of a browser that take more memory than they may."""
    for each in family(pid):
        if resident_bytes(each) > limit_bytes and is_renderer(each):
            with contextlib.suppress(OSError):
                os.kill(each, signal.SIGKILL)


def end_all() -> None:
    """Kill and reap everything that descends from this process, those that left its group too."""
    deadline = time.monotonic() + _REAP_S
    while time.monotonic() < deadline:
        for pid in family(os.getpid())[1:]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.005)
        except ChildProcessError:
            return


def main(owner_pid: int, max_renderer_mib: int, pid_file: Path, command: list[str]) -> int:
    """Run the browser until it, or the process that it is for, ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        owner = os.pidfd_open(owner_pid)
        driver = os.pidfd_open(os.getppid())
    except OSError:  # one of them has ended already
        return 1
    pid_file.write_text(str(os.getpid()))
    # A child of its own, not this process: Chromium's start script runs other programs.
    process = subprocess.Popen(
        command,
        pass_fds=(3, 4),
        preexec_fn=_end_with_parent,
        stdin=subprocess.DEVNULL,
    )
    for pipe in (3, 4):
        os.close(pipe)
    browser = os.pidfd_open(process.pid)
    events = select.poll()
    for watched in (owner, driver, browser):
        events.register(watched, select.POLLIN)
    limit_bytes = max_renderer_mib << 20
    try:
        while not (ended := {number for number, _ in events.poll(_LOOK_EVERY_MS)}):
            end_large_renderers(process.pid, limit_bytes)
        if owner in ended:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(driver, signal.SIGKILL)
    finally:
        end_all()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
