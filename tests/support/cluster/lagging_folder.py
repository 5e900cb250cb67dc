"""A shared folder that shows the writes of other nodes late, as network file systems do."""

import random
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from rl_agent.cluster.member import member
from rl_agent.cluster.shared_fs.folder import Folder, Record, SharedFolder, Stamp

LAG_VARIABLE = "RL_AGENT_FOLDER_LAG"
"""`<seconds>:<seed>`, for `install`."""


class LaggingFolder(Folder):
    """Shows the writes of others late and out of order, as NFS with attribute caching does, and worse.

    A reader sees the same content, absence or listing of a name again for a random time up to `lag_s`, drawn
    for each name. Its own writes show at once; `create_exclusive` always asks the server.
    """

    def __init__(
        self, server: Folder, *, lag_s: float, seed: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = server
        self._lag_s = lag_s
        self._random = random.Random(seed)
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[str, tuple[float, Stamp | None, Record | None]] = {}
        self._listings: dict[str, tuple[float, list[str]]] = {}

    def write_whole(self, name: str, record: Record, *, is_durable: bool = True) -> None:
        self._server.write_whole(name, record, is_durable=is_durable)
        self._records.pop(name, None)

    def read_if_changed(self, name: str, seen: Stamp | None) -> tuple[Stamp | None, Record | None]:
        with self._lock:
            entry = self._records.get(name)
            if entry is None or entry[0] <= self._clock():
                entry = self._records[name] = (self._until(), *self._server.read_if_changed(name, None))
        _, stamp, record = entry
        return stamp, None if stamp == seen else record

    def create_exclusive(self, name: str, record: Record) -> bool:
        is_mine = self._server.create_exclusive(name, record)
        if is_mine:
            self._records.pop(name, None)
        return is_mine

    def names(self, folder: str) -> list[str]:
        with self._lock:
            listing = self._listings.get(folder)
            if listing is None or listing[0] <= self._clock():
                listing = self._listings[folder] = (self._until(), self._server.names(folder))
        return listing[1]

    def _until(self) -> float:
        return self._clock() + self._random.uniform(0.0, self._lag_s)


def install(environ: Mapping[str, str]) -> None:
    """Let this process's nodes see their shared folder late, if LAG_VARIABLE says so."""
    if LAG_VARIABLE in environ:
        lag_s, _, seed = environ[LAG_VARIABLE].partition(":")
        lagging = partial(LaggingFolder, lag_s=float(lag_s), seed=int(seed))
        vars(member)["SharedFolder"] = lambda root: lagging(SharedFolder(root))
