"""What a node says about itself: one record, rewritten whole with every beat and every change.

A node whose `run.sh` is stopped (SIGSTOP, a frozen container) does nothing for the run, so it does not beat
either, and the others see it die.
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_agent.cluster.member.turns import Clock, Say
from rl_agent.cluster.protocol.records import RankRecord, WorkReport
from rl_agent.cluster.shared_fs.folder import Folder
from rl_agent.cluster.shared_fs.processes import ProcessId
from rl_agent.errors import RetryLater

DRIVER_VARIABLE = "RL_AGENT_DRIVER_PID"


def driver_pid(environ: Mapping[str, str]) -> int | None:
    """The `run.sh` that this process belongs to, if there is one."""
    text = environ.get(DRIVER_VARIABLE, "")
    return int(text) if text.isdigit() else None


class Driver:
    """The process that this one works for: `run.sh`. None: nobody."""

    def __init__(self, pid: int | None, say: Say) -> None:
        self._process = ProcessId.of(pid) if pid is not None else None
        self._say = say
        self._was_stopped = False

    @classmethod
    def of_environment(cls, environ: Mapping[str, str], say: Say) -> "Driver":
        return cls(driver_pid(environ), say)

    def is_stopped(self) -> bool:
        """Raises RetryLater if it is gone."""
        if self._process is None:
            return False
        is_stopped = self._process.is_stopped
        if not is_stopped and not self._process.is_running:
            raise RetryLater(f"run.sh (process {self._process.pid}) is gone")
        if is_stopped and not self._was_stopped:
            self._say(f"run.sh (process {self._process.pid}) is stopped: no heartbeat until it continues")
        self._was_stopped = is_stopped
        return is_stopped


@dataclass
class Heartbeat:
    """Thread-safe. `update` changes what the next beat says, `beat` says it now."""

    folder: Folder
    name: str
    incarnation: str
    process: ProcessId
    config_digest: str
    rank: int | None
    is_joiner: bool
    interval_s: float
    driver: Driver
    on_beat: Callable[[RankRecord], None] = lambda record: None
    """Told of every record that was written."""
    work: Callable[[], WorkReport | None] = lambda: None
    clock: Clock = time.monotonic
    host: str = field(default_factory=socket.gethostname)
    _said: dict[str, Any] = field(default_factory=dict)
    _beat: int = 0
    _doing_since: float = 0.0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._doing_since = self.clock()
        self._said = {
            "rank": self.rank,
            "doing": "starting",
            "state": "waiting",
            "reason": "",
            "answers": None,
            "flags": {},
            "stacks": None,
        }

    def update(self, **said: Any) -> None:
        """Raises KeyError for what a record does not say."""
        with self._lock:
            if unknown := said.keys() - self._said.keys():
                raise KeyError(*unknown)
            if said.get("doing", self._said["doing"]) != self._said["doing"]:
                self._doing_since = self.clock()
            self._said |= said

    def beat(self) -> None:
        """Say it now. Raises StoreError if it cannot be written."""
        with self._lock:
            record = RankRecord(
                incarnation=self.incarnation,
                is_joiner=self.is_joiner,
                host=self.host,
                process=self.process,
                beat=self._beat + 1,
                doing_s=round(self.clock() - self._doing_since, 1),
                config_digest=self.config_digest,
                work=self.work(),
                **self._said,
            )
            self._beat += 1
            self.folder.write_whole(self.name, record.to_record(), is_durable=False)
        self.on_beat(record)

    def turn(self) -> float:
        if not self.driver.is_stopped():
            self.beat()
        return self.interval_s
