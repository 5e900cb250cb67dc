"""Runs a Python program that nobody has read, as one that a model wrote, in a sandbox of bubblewrap.

The program sees `/usr`, with the machine's own Python, and an empty `/tmp`: no network, and no file, variable
or process of the run. Its time, memory, processes and files are limited. All that it starts is in a process
namespace, which the kernel ends with its first process: at the program's end, and at that of the caller.
"""

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl_agent.env.guard import descendants, kill
from rl_agent.errors import EnvironmentFailure, EnvironmentUnavailable
from rl_agent.types import writable

MAX_PROCESSES = 16
"""The most processes and threads, with the shell that waits for the program."""
MAX_FILE_BYTES = 8 << 20
"""The largest file, output included, and the size of `/tmp`."""
_MAX_OPEN_FILES = 32
_NOBODY = 65534
_Limit = Literal["", "time", "memory"]
_LOOK_EVERY_S = 0.02
_KILL_LIMIT_S = 5.0
_ISOLATED = (
    *("--unshare-user", "--unshare-all", "--disable-userns", "--cap-drop", "ALL", "--new-session"),
    "--as-pid-1",  # its end ends all others first; bubblewrap's own first process would outlive bubblewrap
    *("--die-with-parent", "--clearenv", "--setenv", "PATH", "/usr/local/bin:/usr/bin"),
    *("--ro-bind-try", "/etc/alternatives", "/etc/alternatives"),  # links of /usr to /usr
    *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--proc", "/proc", "--dev", "/dev"),
    *("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--remount-ro", "/dev"),
    *("--size", str(MAX_FILE_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp"),  # noqa: S108 - its own
)


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """The end of a program in a sandbox."""

    status: int
    """Its exit status; 128 and the number of the signal that ended it."""
    stdout: str
    stderr: str
    stopped_for: _Limit = ""
    """The limit for which all of it was killed."""


def run_python(
    code: str, stdin: str = "", *, timeout_s: float = 10.0, max_memory_mib: int = 512
) -> ProgramRun:
    """Run a program to its end, or to a limit; it blocks its thread meanwhile.

    Raises EnvironmentUnavailable without bubblewrap, EnvironmentFailure if a sandbox cannot be made.
    """
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise EnvironmentUnavailable("programs of a model need bubblewrap: apt-get install bubblewrap")
    limits = {"as": max_memory_mib << 20, "nproc": MAX_PROCESSES, "fsize": MAX_FILE_BYTES, "core": 0}
    limits |= {"nofile": _MAX_OPEN_FILES, "cpu": int(timeout_s) + 1}
    # Another user than root: the kernel limits no processes of root's.
    as_nobody: dict[str, Any] = (
        {} if os.geteuid() else {"user": _NOBODY, "group": _NOBODY, "extra_groups": ()}
    )
    with ExitStack() as files:
        program, given, out, err, report = (files.enter_context(tempfile.TemporaryFile()) for _ in range(5))
        for file, text in ((program, code), (given, stdin)):
            file.write(text.encode(errors="replace"))
            file.seek(0)
        words = [bubblewrap, *_ISOLATED, "--ro-bind-data", str(program.fileno()), "/program.py"]
        words += ["--remount-ro", "/", "--json-status-fd", str(report.fileno())]
        words += ["sh", "-c", '"$@"; exit $?', "sh", "prlimit"]  # the first process, which waits
        words += [f"--{name}={limit}" for name, limit in limits.items()]
        try:
            process = subprocess.Popen(
                [*words, "python3", "-I", "/program.py"],
                pass_fds=(program.fileno(), report.fileno()),
                stdin=given,
                stdout=out,
                stderr=err,
                env={},  # the program may read bubblewrap's variables
                cwd="/",
                **as_nobody,
            )
        except PermissionError:
            lacking = "root may not become another user here, without CAP_SETUID and CAP_SETGID"
            raise EnvironmentFailure(f"no sandbox can be made: {lacking}") from None
        with process:
            stopped_for = _watch(process, timeout_s, max_memory_mib << 20)
        for file in (out, err, report):
            file.seek(0)
        printed, errors = (writable(file.read().decode(errors="replace")) for file in (out, err))
        if not stopped_for and b'"exit-code"' not in report.read():
            raise EnvironmentFailure(f"no sandbox can be made: {errors.strip()[:300]}")
    return ProgramRun(process.returncode, printed, errors, stopped_for)


def _watch(process: "subprocess.Popen[bytes]", timeout_s: float, max_bytes: int) -> _Limit:
    """Wait for the end, or end it; returns the limit that it went over."""
    deadline = time.monotonic() + timeout_s
    reached: _Limit = ""
    try:
        while not reached:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_EVERY_S)
                return ""
            if time.monotonic() >= deadline:
                reached = "time"
            elif _taken_bytes(descendants(process.pid)) > max_bytes:
                reached = "memory"
        kill(descendants(process.pid))  # bubblewrap ends after them
        with suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_LIMIT_S)
        return reached
    finally:
        process.kill()


def _taken_bytes(pids: list[int]) -> int:
    """Return the memory of processes without that of files; what they share is counted for each."""
    total = 0
    for pid in pids:
        with suppress(OSError):  # it has ended
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith(("RssAnon:", "RssShmem:")):
                    total += int(line.split()[1]) << 10
    return total
