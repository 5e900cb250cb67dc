"""One live run a log path."""

import json
import os
import subprocess

import pytest

from rl_agent.cluster.processes import stat_of
from rl_agent.cluster.run_lock import check_free, claim, lock_path
from rl_agent.errors import ConfigError


@pytest.fixture
def other():
    """A living process that may own a lock."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_claim_of_a_living_process_is_respected_and_named(tmp_path, other):
    claim(tmp_path, other.pid)
    with pytest.raises(ConfigError, match=f"used by another run, process {other.pid}"):
        claim(tmp_path, os.getpid())


def test_a_claim_of_a_dead_process_holds_nothing(tmp_path, other):
    claim(tmp_path, other.pid)
    other.kill()
    other.wait()
    claim(tmp_path, os.getpid())
    assert json.loads(lock_path(tmp_path).read_text())["pid"] == os.getpid()


def test_a_process_id_that_was_used_again_holds_nothing(tmp_path, other):
    claim(tmp_path, other.pid)
    record = json.loads(lock_path(tmp_path).read_text())
    record["start_ticks"] = stat_of(other.pid).start_ticks - 1
    lock_path(tmp_path).write_text(json.dumps(record))
    check_free(tmp_path)


def test_a_claim_of_another_host_is_believed_and_says_how_to_remove_it(tmp_path):
    lock_path(tmp_path).write_text('{"host": "elsewhere", "pid": 1, "start_ticks": 1}')
    with pytest.raises(ConfigError, match="on elsewhere; if that run is gone, remove"):
        check_free(tmp_path)


def test_a_lock_that_cannot_be_read_holds_nothing(tmp_path):
    lock_path(tmp_path).write_text("{")
    check_free(tmp_path)
