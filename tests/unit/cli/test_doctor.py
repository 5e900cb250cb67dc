"""The verb doctor shows a living run, and a folder without one."""

import json
import shutil

import pytest

from rl_agent.cli import doctor
from rl_agent.errors import ConfigError
from tests.support.cluster.members import master


def test_a_living_run_is_seen_alive_and_its_end_too(tmp_path, capsys):
    with master(tmp_path, 1, "cluster.heartbeat_s=1", "cluster.lease_s=9") as node:
        node.give_order(1, "rollout")
        assert doctor.main(["--log-path", str(tmp_path / "log")]) == 0
        printed = capsys.readouterr().out
    assert "rank 0" in printed and "alive" in printed and "nothing: the run goes on" in printed
    assert doctor.main(["--log-path", str(tmp_path / "log")]) == 0
    printed = capsys.readouterr().out
    assert "ended with status 0" in printed and "nothing: the run is done" in printed


def test_a_folder_without_a_run_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="no run of this version has begun there"):
        doctor.main(["--log-path", str(tmp_path)])


def test_a_run_whose_threads_stand_still_is_seen_as_silent(tmp_path, capsys):
    with master(tmp_path, 1) as node:
        for thread in node._threads:
            thread.stop()
        assert doctor.main(["--log-path", str(tmp_path / "log")]) == 1
    assert "sends no heartbeat" in capsys.readouterr().out


@pytest.fixture
def left(tmp_path):
    """The folder of a run whose processes are gone, and a change of its record."""
    with master(tmp_path, 1) as node:
        node.give_order(1, "rollout")
        shutil.copytree(tmp_path / "log", tmp_path / "left", ignore=shutil.ignore_patterns("*.tmp"))
    record = tmp_path / "left" / "cluster" / "master.json"

    def change(**fields):
        record.write_text(json.dumps(json.loads(record.read_text()) | fields))
        return doctor.main(["--log-path", str(tmp_path / "left")])

    return change


def test_unreadable_numbers_do_not_hide_the_living_nodes(left, tmp_path, capsys):
    (tmp_path / "left" / "metrics.jsonl").mkdir()
    assert left() == 1
    printed = capsys.readouterr().out
    assert "metrics.jsonl: Is a directory" in printed and "sends no heartbeat" in printed
