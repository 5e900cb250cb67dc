"""Processes of this host as `/proc` shows them: start times, groups, and the mark a run puts on its own.

Every process that a run starts inherits `RL_AGENT_GROUP=<token>`. The token is random, so a process that
carries it is the run's, also after its parent died or it moved to another session.
"""

import os
import signal
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "RL_AGENT_GROUP"
_PROC = Path("/proc")
_PID_NAMESPACE_OF_HOST = 0xEFFFFFFC
"""The kernel's own number of it, on every host."""


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    pid: int
    state: str
    pgid: int
    start_ticks: int
    """Clock ticks between boot and start; with the pid it names a process for good."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """What `start_group` wrote about a process group."""

    name: str
    path: Path
    pgid: int
    start_ticks: int
    token: str


def pid_space() -> str:
    """Where a process id names one process: this host, or a container on it, which may share its name."""
    host = socket.gethostname()
    try:
        namespace = (_PROC / "self" / "ns" / "pid").stat().st_ino
    except OSError:  # a kernel without namespaces, or a sandbox that shows none
        return host
    return host if namespace == _PID_NAMESPACE_OF_HOST else f"{host}-{namespace}"


def stat_of(pid: int) -> ProcessStat | None:
    """None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return ProcessStat(pid, fields[0], int(fields[2]), int(fields[19]))


def is_same_process(pid: int, start_ticks: int) -> bool:
    """Whether `pid` still is the process that started then, and not a zombie."""
    stat = stat_of(pid)
    return stat is not None and stat.start_ticks == start_ticks and stat.state not in "ZX"


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Names one process of this host for good: its number alone may be another's by now."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        """One that is not there is named too, and does not run."""
        stat = stat_of(pid)
        return cls(pid, stat.start_ticks if stat else 0)

    @property
    def is_running(self) -> bool:
        return is_same_process(self.pid, self.start_ticks)


def command_line(pid: int) -> str:
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return "gone"
    return " ".join(words.replace("\0", " ").split())[:160] or "no command line"


def read_groups(groups_dir: Path) -> list[GroupRecord]:
    """Records under a run's groups folder; half-written ones are passed over."""
    found = []
    for path in sorted(groups_dir.glob("*")) if groups_dir.is_dir() else ():
        words = path.read_text(encoding="utf-8").split()
        if len(words) == 3 and words[0].isdigit() and words[1].isdigit():
            found.append(GroupRecord(path.name, path, int(words[0]), int(words[1]), words[2]))
    return found


def members(group: GroupRecord) -> list[int]:
    """Living processes of a recorded group: those with its mark, or in the group that its leader leads."""
    leads = is_same_process(group.pgid, group.start_ticks)
    mark = f"{MARK}={group.token}".encode()
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        stat = stat_of(int(entry.name))
        if stat is None or stat.state in "ZX":
            continue
        if (leads and stat.pgid == group.pgid) or mark in _environ(entry):
            found.append(stat.pid)
    return sorted(found)


def _environ(entry: Path) -> list[bytes]:
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def end_groups(groups: Iterable[GroupRecord], grace_s: float) -> bool:
    """TERM, then KILL after `grace_s`, every member; whether all are gone."""
    groups = list(groups)
    for sign, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 2.0)):
        deadline = time.monotonic() + wait_s
        _signal(groups, sign)
        while any(members(group) for group in groups):
            if time.monotonic() >= deadline:
                break
            time.sleep(0.05)
        else:
            return True
    return False


def _signal(groups: Iterable[GroupRecord], sign: signal.Signals) -> None:
    for group in groups:
        for pid in members(group):
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                continue


def boot_id() -> str:
    """Of this host since it was started; empty where nobody knows."""
    with suppress(OSError):
        return _BOOT_ID.read_text(encoding="ascii").strip()
    return ""
