"""The parts of a node process share these: folders, log, clock, and the run.sh that they work for."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rl_agent.cluster.member.notifier import Notifier
from rl_agent.cluster.member.polling import Clock, Log
from rl_agent.cluster.shared_fs.folder import Folder
from rl_agent.errors import RetryLater
from rl_agent.system.processes import ProcessId

DRIVER_VARIABLE = "RL_AGENT_DRIVER_PID"


def driver_pid(environ: Mapping[str, str]) -> int | None:
    """Return the process id of the run.sh that this process belongs to, if there is one."""
    text = environ.get(DRIVER_VARIABLE, "")
    return int(text) if text.isdigit() else None


class Driver:
    """The run.sh that this process works for; with `pid` None there is none, and it never stops."""

    def __init__(self, pid: int | None, log: Log) -> None:
        self._process = ProcessId.of(pid) if pid is not None else None
        self._log = log
        self._was_stopped = False

    def is_stopped(self) -> bool:
        """Return whether run.sh was stopped (SIGSTOP). Raises RetryLater if it has ended."""
        if self._process is None:
            return False
        is_stopped = self._process.is_stopped
        if not is_stopped and not self._process.is_running:
            raise RetryLater(f"run.sh (process {self._process.pid}) is gone")
        if is_stopped and not self._was_stopped:
            self._log(f"run.sh (process {self._process.pid}) is stopped: no heartbeat until it continues")
        self._was_stopped = is_stopped
        return is_stopped


def in_background(job: Callable[[], None]) -> None:
    """Run a job in a daemon thread."""
    threading.Thread(target=job, name="cluster job", daemon=True).start()


@dataclass(frozen=True)
class Services:
    """The environment of one node; a simulation brings its own clock and threads."""

    folder: Folder
    durable: Folder
    """Flags and decisions are written here; a member that is alone has another folder than `folder` for them.
    """
    driver: Driver
    log: Log
    clock: Clock
    in_background: Callable[[Callable[[], None]], None] = in_background
    notifier: Notifier = field(default_factory=Notifier)
