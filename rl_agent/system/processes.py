"""Processes of this host as `/proc` shows them: identities, groups, and the mark a run puts on its own.

Every process that a run starts inherits `RL_AGENT_GROUP=<token>`. The token is random, so a process that
carries it is the run's, also after its parent died or it moved to another session.
"""

import os
import signal
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

MARK = "RL_AGENT_GROUP"
_PROC = Path("/proc")
_PID_NAMESPACE_OF_HOST = 0xEFFFFFFC
"""Inode number that the kernel gives the initial pid namespace, on every host."""
_ENDED = "ZX"


def pid_space() -> str:
    """The name of the space in which a process id is unique: this host, or a container on it."""
    host = socket.gethostname()
    try:
        namespace = (_PROC / "self" / "ns" / "pid").stat().st_ino
    except OSError:  # a kernel without namespaces, or a sandbox that shows none
        return host
    return host if namespace == _PID_NAMESPACE_OF_HOST else f"{host}-{namespace}"


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of `/proc/<pid>/stat` that are used here."""

    pid: int
    state: str
    pgid: int
    start_ticks: int
    """Clock ticks between boot and start; with the pid it identifies a process for good."""


def stat_of(pid: int) -> ProcessStat | None:
    """Read the state of a process; None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return ProcessStat(pid, fields[0], int(fields[2]), int(fields[19]))


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Identifies one process for good: a pid alone may be given to another process later."""

    pid: int
    start_ticks: int
    host: str = field(default_factory=pid_space)
    """Host of the process, or its container: see `pid_space`."""

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        """Identify the process that has this pid now; one that does not exist is never running."""
        stat = stat_of(pid)
        return cls(pid, stat.start_ticks if stat else 0)

    @property
    def is_here(self) -> bool:
        """Return whether this host can tell if the process is running."""
        return self.host == pid_space()

    @property
    def state(self) -> str:
        """The letter of its state in `/proc`; empty if it has ended, is a zombie, or is on another host."""
        stat = stat_of(self.pid) if self.is_here else None
        is_same = stat is not None and stat.start_ticks == self.start_ticks and stat.state not in _ENDED
        return stat.state if stat and is_same else ""

    @property
    def is_running(self) -> bool:
        """Return whether the process runs on this host, stopped (SIGSTOP) or not."""
        return self.state != ""

    @property
    def is_stopped(self) -> bool:
        """Return whether the process exists and was stopped (SIGSTOP or a debugger)."""
        return self.state in ("T", "t")


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A process group as `start_group` recorded it."""

    name: str
    path: Path
    leader: ProcessId
    token: str


def command_line(pid: int) -> str:
    """The command line of a process in at most 160 characters."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return "gone"
    return " ".join(words.replace("\0", " ").split())[:160] or "no command line"


def read_groups(groups_dir: Path) -> list[GroupRecord]:
    """Read the records in a run's groups folder; skip half-written ones, and those of groups that end."""
    records = []
    for path in sorted(groups_dir.glob("*")) if groups_dir.is_dir() else ():
        try:
            words = path.read_text(encoding="utf-8").split()
        except FileNotFoundError:
            continue
        if len(words) == 3 and words[0].isdigit() and words[1].isdigit():
            records.append(GroupRecord(path.name, path, ProcessId(int(words[0]), int(words[1])), words[2]))
    return records


def members(group: GroupRecord) -> list[int]:
    """List the running processes of a group: those with its mark, and those that its leader still leads."""
    is_led = group.leader.is_running
    mark = f"{MARK}={group.token}".encode()
    pids = []
    for entry in _PROC.iterdir():
        stat = stat_of(int(entry.name)) if entry.name.isdigit() else None
        if stat is None or stat.state in _ENDED:
            continue
        if (is_led and stat.pgid == group.leader.pid) or mark in _environ(entry):
            pids.append(stat.pid)
    return sorted(pids)


def _environ(entry: Path) -> list[bytes]:
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def end_groups(groups: Iterable[GroupRecord], grace_s: float) -> bool:
    """Send TERM to every member, and KILL after `grace_s`; return True once all have ended."""
    groups = list(groups)
    for sign, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 2.0)):
        deadline = time.monotonic() + wait_s
        for pid in _members_of_all(groups):
            with suppress(ProcessLookupError):
                os.kill(pid, sign)
        while _members_of_all(groups):
            if time.monotonic() >= deadline:
                break
            time.sleep(0.05)
        else:
            return True
    return False


def _members_of_all(groups: Iterable[GroupRecord]) -> list[int]:
    return [pid for group in groups for pid in members(group)]


def boot_id() -> str:
    """The random id of this boot of the host; empty where the kernel does not tell."""
    with suppress(OSError):
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
