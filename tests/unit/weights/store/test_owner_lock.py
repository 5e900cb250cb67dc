"""Memory of a killed process goes with the next start; memory of a living one stays."""

import json
import os

from rl_agent.weights.store.owner_lock import OWNER, remove_orphaned
from rl_agent.weights.store.store import SnapshotStore

DEAD = {"host": os.uname().nodename, "pid": os.getpid(), "start_ticks": 1}
ELSEWHERE = {"host": "another-host", "pid": 1, "start_ticks": 1}


def test_a_store_goes_once_the_run_it_is_of_is_dead(tmp_path):
    folder = tmp_path / "rl-agent-run"
    SnapshotStore(folder, keep_versions=1, owner_pid=os.getpid()).close()
    assert remove_orphaned(tmp_path) == []  # between two trainers it is its run's
    assert json.loads((folder / OWNER).read_text())["pid"] == os.getpid()
    (folder / OWNER).write_text(json.dumps(DEAD))
    assert remove_orphaned(tmp_path) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_the_stores_of_a_run_go_together(tmp_path):
    run = tmp_path / "rl-agent-run"
    with SnapshotStore(run / "rl-agent-worker-1", keep_versions=1):
        os.utime(run, (0, 0))
        assert remove_orphaned(tmp_path) == []
    (run / "rl-agent-worker-1" / OWNER).write_text(json.dumps(DEAD))
    os.utime(run, (0, 0))
    assert remove_orphaned(tmp_path) == [run]


def test_stores_in_use_or_of_another_host_stay(tmp_path):
    (tmp_path / "rl-agent-fetch-1.lock").touch()
    (tmp_path / "rl-agent-new").mkdir()
    with SnapshotStore(tmp_path / "rl-agent-open", keep_versions=1):
        other = tmp_path / "rl-agent-other"
        other.mkdir()
        (other / OWNER).write_text(json.dumps(ELSEWHERE))
        orphan = tmp_path / "rl-agent-orphan"
        SnapshotStore(orphan, keep_versions=1).close()
        (orphan / OWNER).write_text(json.dumps(DEAD))
        assert set(remove_orphaned(tmp_path)) == {orphan}
    assert len(list(tmp_path.iterdir())) == 4
