"""Runs a command and answers for its end: `guard.py OWNER_PID FOLDER GRACE_S MAX_MIB WORD COMMAND…`.

    owner ─► guard ─► twin ─► command ─► what it starts, in whichever process group or session

- The command, the owner, the process that started the guard, the guard or its twin ends, or the guard is
  told to (TERM): all below is killed and reaped, then FOLDER deleted. While it is there, something may be.
- There are two because either may be killed or stopped. Each watches the owner and the other; the kernel
  gives what one loses to the other (both are subreapers), and wakes a stopped one when its parent ends.
- Told to end, the process group of the command has GRACE_S seconds after a TERM of its own.
- A process below that has WORD in its command line and takes more than MAX_MIB of memory is killed.

The command has the guard's open files, and the guard keeps none of them but stderr. It is run by the path of
this file and needs the standard library alone: it starts in some hundredths of a second.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn

END_LIMIT_S = 5.0
_LOOK_EVERY_MS = 500
_STDERR = 2
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def pid_file(folder: Path) -> Path:
    """Return the file that names the guard of a folder."""
    return folder / "guard.pid"


def signal_at_end_of_parent(number: signal.Signals) -> None:
    """Let the kernel send this process a signal when its parent ends, also while it is stopped."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))


def descendants(root: int) -> list[int]:
    """Return the processes below one; one that changes its parent meanwhile may be missed."""
    pids = _children(root)
    for pid in pids:  # which grows meanwhile
        pids += _children(pid)
    return pids


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            pids += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return pids


def own_bytes(pids: Iterable[int]) -> int:
    """Return the memory that processes have to themselves: no files, nothing for those that have ended."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            _size, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
            total += (int(resident) - int(shared)) * _PAGE_BYTES
    return total


def has_word(pid: int, word: bytes) -> bool:
    """Tell whether a process was started with this in its command line."""
    with contextlib.suppress(OSError):
        return word in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def kill(pids: Iterable[int]) -> None:
    """Kill processes, whether they are there or not."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def end_descendants() -> dict[int, int]:
    """Kill and reap all below this process, a subreaper; returns the exit codes of its children.

    Only the kernel's word that there is no child counts: `descendants` may miss one.
    """
    codes: dict[int, int] = {}
    deadline = time.monotonic() + END_LIMIT_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                code = os.waitstatus_to_exitcode(child[1])
                codes[child[0]] = 128 - code if code < 0 else code
            kill(descendants(os.getpid()))
            time.sleep(0.005)
    return codes


class _Guarded(NamedTuple):
    """The part that guard and twin have in common."""

    folder: Path
    grace_s: float
    limit_bytes: int
    word: bytes
    owner: int
    """A descriptor of that process, as are the next two."""
    starter: int
    guard: int

    def keep(self, child: int, watched: tuple[int, ...], *, is_twin: bool) -> NoReturn:
        """Wait for the first end, end all below, and exit as the child did; by TERM where told to end."""
        told, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        child_ends = os.pidfd_open(child)
        _let_go({told, write_end, child_ends, *watched})
        events = select.poll()
        for descriptor in (told, child_ends, *watched):
            events.register(descriptor, select.POLLIN)
        deadline = float("inf")
        while time.monotonic() < deadline:
            ended = {descriptor for descriptor, _ in events.poll(_LOOK_EVERY_MS)}
            if ended - {told}:
                break
            if ended:
                events.unregister(told)
                deadline = time.monotonic() + self.grace_s
                if self.grace_s:
                    os.killpg(child, signal.SIGTERM)
            if is_twin and self.limit_bytes:
                below = descendants(child)
                kill(pid for pid in below if own_bytes([pid]) > self.limit_bytes and has_word(pid, self.word))
        was_told = time.monotonic() >= deadline
        codes = end_descendants()
        code = 128 + signal.SIGTERM if was_told else codes.get(child, 128 + signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)
        if select.select([self.owner], [], [], 0)[0]:
            with contextlib.suppress(ProcessLookupError):  # it acted for the owner, and may be stopped
                signal.pidfd_send_signal(self.starter, signal.SIGKILL)
        os._exit(code)


def _let_go(kept: set[int]) -> None:
    """Close what the command has inherited, so that its end is seen at the other end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if (descriptor := int(name)) in (0, 1):
            os.dup2(nothing, descriptor)
        elif descriptor not in {_STDERR, *kept}:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(descriptor)


def _become(command: list[str], parent: int) -> NoReturn:
    os.setpgid(0, 0)
    signal_at_end_of_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before the line above
        os._exit(1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGHUP})
    try:
        os.execvp(command[0], command)  # noqa: S606 - what the owner wants to be run
    except OSError as error:
        os.write(_STDERR, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127)


def main(owner_pid: str, folder: str, grace_s: str, max_mib: str, word: str, *command: str) -> NoReturn:
    """Start the twin, which starts the command, and wait until it is over."""
    signal_at_end_of_parent(signal.SIGCONT)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of the kernel, where this was stopped as its owner ended
    try:
        guarded = _Guarded(
            Path(folder),
            float(grace_s),
            int(max_mib) << 20,
            word.encode(),
            os.pidfd_open(int(owner_pid)),
            os.pidfd_open(os.getppid()),
            os.pidfd_open(os.getpid()),
        )
        pid_file(guarded.folder).write_text(str(os.getpid()))
    except OSError:  # the owner, or the process that started this one, has ended already
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if twin := os.fork():
        guarded.keep(twin, (guarded.owner, guarded.starter), is_twin=False)
    os.setsid()
    signal_at_end_of_parent(signal.SIGCONT)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    me = os.getpid()
    if child := os.fork():
        with contextlib.suppress(OSError):  # the child has done it
            os.setpgid(child, child)
        guarded.keep(child, (guarded.owner, guarded.starter, guarded.guard), is_twin=True)
    _become(list(command), me)


if __name__ == "__main__":
    main(*sys.argv[1:])
