"""Two looks at a run's folder: who has shown life in between, and how long the second one waits."""

from types import SimpleNamespace

import pytest

from rl_agent.cluster.member import look
from rl_agent.cluster.protocol.records import MASTER_FILE, ClusterPaths, RunEnd
from rl_agent.cluster.protocol.view import view_of
from rl_agent.cluster.shared_fs.folder import SharedFolder
from rl_agent.errors import ConfigError
from rl_agent.system.processes import ProcessId
from tests.unit.cluster.cluster_states import MASTER, Run, record


class Shared(SharedFolder):
    """A run of a master and two nodes; `at` says what is written when the clock passes a time."""

    def __init__(self, root, monkeypatch):
        super().__init__(root)
        self.now, self.at = 0.0, {}
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(look, "time", clock)  # the clock of no other thread
        self.view = view_of(Run(2, ranks=[1]).state, ClusterPaths("run", 1))
        self.write_view(1)
        for name, rank in ((MASTER, 0), ("m1", 1)):
            self.write(record(name, rank))

    def write_view(self, beat, **fields):
        fields |= {"beat": beat, "heartbeat_s": 1.0}
        self.write_whole(MASTER_FILE, self.view.model_copy(update=fields).to_record())

    def write(self, record):
        places = ClusterPaths(self.view.run_id, self.view.attempt)
        self.write_whole(f"{places.ranks}/{record.incarnation}.json", record.to_record())

    def sleep(self, seconds):
        self.now += seconds
        for when in sorted(when for when in self.at if when <= self.now):
            self.at.pop(when)()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return Shared(tmp_path, monkeypatch)


def test_it_ends_as_soon_as_the_master_and_every_living_member_have_beaten(folder):
    folder.at = {
        0.5: lambda: folder.write_view(2),
        0.8: lambda: folder.write(record(MASTER, 0, beat=2)),
        1.0: lambda: folder.write(record("m1", 1, beat=2)),
    }
    seen = look.look_twice(folder)
    assert (seen.master_beats, seen.beating) == (True, {MASTER, "m1"})
    assert folder.now == pytest.approx(1.0, abs=0.15)


def test_a_silent_node_is_awaited_for_some_heartbeats_and_no_longer(folder):
    folder.at = {0.5: lambda: folder.write_view(2), 0.6: lambda: folder.write(record(MASTER, 0, beat=2))}
    seen = look.look_twice(folder)
    assert seen.beating == {MASTER}
    assert folder.now == pytest.approx(2.5, abs=0.15)


def test_a_node_that_came_in_between_has_not_shown_that_it_goes_on(folder):
    folder.at = {0.5: lambda: folder.write(record("new", None))}
    seen = look.look_twice(folder)
    assert "new" in seen.records and not seen.beating and not seen.master_beats


def test_another_master_is_one_that_lives(folder):
    folder.at = {0.5: lambda: folder.write_view(1, master="m9")}
    assert look.look_twice(folder).master_beats


def test_a_run_that_has_ended_is_not_waited_for(folder):
    folder.write_view(1, ended=RunEnd(status=0, reason="done"))
    assert look.look_twice(folder).view.ended.status == 0
    assert folder.now == 0.0


def test_a_process_of_this_host_that_is_stopped_is_named(folder, monkeypatch):
    monkeypatch.setattr(ProcessId, "is_stopped", property(lambda process: process.pid == 8))
    folder.write(record("m1", 1, process=ProcessId(8, 1)))
    assert look.look_twice(folder).stopped == {"m1"}


@pytest.mark.parametrize("content", [None, "{", '{"of": "another version"}'])
def test_a_folder_without_a_run_of_this_version_is_reported(folder, content):
    (folder.root / MASTER_FILE).unlink()
    if content is not None:
        (folder.root / MASTER_FILE).write_text(content)
    with pytest.raises(ConfigError, match="no run of this version has begun there"):
        look.look_twice(folder)
