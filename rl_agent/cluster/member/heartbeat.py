"""The record that a node writes about itself, whole, with every heartbeat and every change.

A node whose `run.sh` is stopped (SIGSTOP, a frozen container) does no work for the run, so it sends no
heartbeat either, and the other nodes declare it dead.
"""

import socket
import threading
from collections.abc import Callable
from typing import Any

from rl_agent.cluster.member.services import Services
from rl_agent.cluster.protocol.records import ChunkReport, RankRecord


class Heartbeat:
    """Thread-safe. `update` changes what the next heartbeat says, `send` writes one now."""

    def __init__(
        self,
        services: Services,
        name: str,
        *,
        interval_s: float,
        on_sent: Callable[[RankRecord], None],
        chunks: Callable[[], ChunkReport | None],
        **constant: Any,
    ) -> None:
        """`name` is the record's file; `constant` are the fields of `RankRecord` that never change."""
        self.host = socket.gethostname()
        self._services = services
        self._name = name
        self._interval_s = interval_s
        self._on_sent = on_sent
        self._chunks = chunks
        self._constant = constant
        self._lock = threading.RLock()
        self._beat = 0
        self._doing_since = services.clock()
        self._changing: dict[str, Any] = {
            "doing": "starting",
            "state": "waiting",
            "reason": "",
            "answers": None,
            "flags": {},
        }

    def update(self, **fields: Any) -> None:
        """Change fields of the record. Raises KeyError for one that it does not have."""
        with self._lock:
            if unknown := fields.keys() - self._changing.keys():
                raise KeyError(*unknown)
            if fields.get("doing", self._changing["doing"]) != self._changing["doing"]:
                self._doing_since = self._services.clock()
            self._changing |= fields

    def send(self) -> None:
        """Write the record now. Raises StoreError if it cannot be written."""
        with self._lock:
            record = RankRecord(
                host=self.host,
                beat=self._beat + 1,
                doing_s=round(self._services.clock() - self._doing_since, 1),
                work=self._chunks(),
                **self._constant,
                **self._changing,
            )
            self._beat += 1
            self._services.folder.write_whole(self._name, record.to_record(), is_durable=False)
        self._on_sent(record)

    def poll(self) -> float:
        """Send a heartbeat unless run.sh is stopped; return the seconds until the next one."""
        if not self._services.driver.is_stopped():
            self.send()
        return self._interval_s
