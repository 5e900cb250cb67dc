"""Reads the folder of a run twice, some heartbeats apart, for those who are no member of it."""

import time

from rl_agent.cluster.protocol import records
from rl_agent.cluster.protocol.diagnosis import FolderPolls
from rl_agent.cluster.protocol.records import MASTER_FILE, ClusterPaths, RankRecord, View
from rl_agent.cluster.shared_fs.folder import SharedFolder
from rl_agent.errors import ConfigError

_HEARTBEATS = 2.5
"""The time between the two looks; a node that lives has beaten at least twice by then."""
_POLL_S = 0.1


def look_twice(folder: SharedFolder) -> FolderPolls:
    """Return what two looks show. They take some heartbeats, less where everybody shows life before.

    Raises ConfigError without a run.
    """
    before, first = _read(folder)
    view, now = before, first
    deadline = time.monotonic() + _HEARTBEATS * before.heartbeat_s
    beating: set[str] = set()
    while before.ended is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        view, now = _read(folder)
        beating = {name for name, record in now.items() if name in first and record.beat != first[name].beat}
        living = {member.incarnation for member in view.members if member.status == "alive"}
        if view.beat != before.beat and living <= beating:
            break
    is_beating = view.beat != before.beat or view.master != before.master
    stopped = frozenset(name for name, record in now.items() if record.process.is_stopped)
    return FolderPolls(view, now, frozenset(beating), is_beating, stopped)


def _read(folder: SharedFolder) -> tuple[View, dict[str, RankRecord]]:
    view = records.parse(View, folder.read(MASTER_FILE))
    if view is None:
        raise ConfigError(f"--log-path {folder.root}: no run of this version has begun there")
    places = ClusterPaths(view.run_id, view.attempt)
    rank_records = (
        records.parse(RankRecord, folder.read(f"{places.ranks}/{name}"))
        for name in folder.names(places.ranks)
    )
    return view, {record.incarnation: record for record in rank_records if record is not None}
