"""One live run a log path."""

import json
import os
import threading

import pytest

from rl_agent.cluster.shared_fs.run_lock import check_free, claim, has_heartbeat, heartbeat_path, lock_path
from rl_agent.errors import ConfigError
from rl_agent.system.processes import stat_of

LEASE_S = 0.3
ELSEWHERE = '{"host": "elsewhere", "pid": 1, "start_ticks": 1}'


def test_a_claim_of_a_living_process_is_respected_and_named(tmp_path, sleeper):
    claim(tmp_path, sleeper.pid, LEASE_S)
    with pytest.raises(ConfigError, match=f"used by another run, process {sleeper.pid}"):
        claim(tmp_path, os.getpid(), LEASE_S)


@pytest.mark.parametrize("kind", ["dead", "process id used again", "unreadable"])
def test_a_claim_of_no_living_process_holds_nothing(tmp_path, sleeper, kind):
    claim(tmp_path, sleeper.pid, LEASE_S)
    if kind == "dead":
        sleeper.kill()
        sleeper.wait()
    elif kind == "unreadable":
        lock_path(tmp_path).write_text("{")
    else:
        record = json.loads(lock_path(tmp_path).read_text())
        record["start_ticks"] = stat_of(sleeper.pid).start_ticks - 1
        lock_path(tmp_path).write_text(json.dumps(record))
    check_free(tmp_path, LEASE_S)
    claim(tmp_path, os.getpid(), LEASE_S)
    assert json.loads(lock_path(tmp_path).read_text())["pid"] == os.getpid()


def test_a_run_on_another_host_with_a_heartbeat_is_respected_and_named(tmp_path):
    lock_path(tmp_path).write_text(ELSEWHERE)
    beat = heartbeat_path(tmp_path)
    beat.parent.mkdir()
    beat.write_text("1")
    writer = threading.Timer(0.3, beat.write_text, args=["2"])
    writer.start()
    with pytest.raises(ConfigError, match="process 1 on elsewhere"):
        check_free(tmp_path, 30.0)
    writer.join()


@pytest.mark.parametrize("has_heartbeat", [True, False])
def test_a_run_on_another_host_that_shows_none_holds_nothing(tmp_path, has_heartbeat):
    lock_path(tmp_path).write_text(ELSEWHERE)
    if has_heartbeat:
        heartbeat_path(tmp_path).parent.mkdir()
        heartbeat_path(tmp_path).write_text("1")
    claim(tmp_path, os.getpid(), LEASE_S)


def test_silence_is_only_found_after_the_whole_lease(tmp_path):
    heartbeat_path(tmp_path).parent.mkdir()
    heartbeat_path(tmp_path).write_text("1")
    pauses = []
    assert not has_heartbeat(tmp_path, 30.0, clock=lambda: sum(pauses), sleep=pauses.append)
    assert sum(pauses) >= 30.0
