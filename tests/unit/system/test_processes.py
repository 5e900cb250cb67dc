"""Process groups of a run: found by their mark, ended as a whole, never mistaken for another's."""

import os
import secrets
import signal
import subprocess
import sys
import time

import pytest

from rl_agent.system.processes import (
    MARK,
    GroupRecord,
    ProcessId,
    end_groups,
    members,
    read_groups,
    stat_of,
)

FORKS = """
import subprocess, sys, time
speak_and_stay = "import time; print(flush=True); time.sleep(60)"  # while it is being loaded it has no mark
subprocess.Popen([sys.executable, "-Sc", speak_and_stay], start_new_session=True)
time.sleep(60)
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); time.sleep(60)"


@pytest.fixture
def start(tmp_path):
    """Starts Python code as a recorded group and waits until it speaks."""
    started = []

    def start_group(code):
        token = secrets.token_hex(8)  # other runs of these tests on this machine have theirs
        process = subprocess.Popen(
            [sys.executable, "-uc", code],
            env={**os.environ, MARK: token},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        process.stdout.readline()
        started.append(process)
        stat = stat_of(process.pid)
        return process, GroupRecord("name", tmp_path, ProcessId(process.pid, stat.start_ticks), token)

    yield start_group
    for process in started:
        process.kill()
        process.communicate()


def test_a_group_includes_children_that_moved_to_another_session(start):
    process, group = start(FORKS)
    pids = members(group)
    assert process.pid in pids
    assert len(pids) == 2
    assert end_groups([group], grace_s=60)
    assert members(group) == []


def test_children_are_found_after_their_parent_died(start):
    process, group = start(FORKS)
    process.kill()
    process.wait()
    assert len(members(group)) == 1
    assert end_groups([group], grace_s=60)


def test_a_process_that_ignores_term_is_killed_after_the_grace(start):
    process, group = start(STUBBORN)
    assert end_groups([group], grace_s=0.2)
    assert process.wait() == -signal.SIGKILL


def test_a_group_of_which_only_zombies_remain_is_gone(start):
    process, group = start("print()")
    while stat_of(process.pid).state != "Z":
        time.sleep(0.01)
    assert members(group) == []
    assert not group.leader.is_running


def test_a_process_id_that_was_used_again_is_not_ours(start):
    process, group = start("print(); import time; time.sleep(60)")
    ours = GroupRecord("name", group.path, ProcessId(process.pid, group.leader.start_ticks - 1), "ours")
    assert members(ours) == []
    assert end_groups([ours], grace_s=0)
    assert process.poll() is None


def test_records_are_read_and_torn_ones_passed_over(tmp_path):
    (tmp_path / "vllm").write_text("12 34 token\n")
    (tmp_path / "torn").write_text("12 3")
    assert read_groups(tmp_path) == [GroupRecord("vllm", tmp_path / "vllm", ProcessId(12, 34), "token")]
    assert read_groups(tmp_path / "missing") == []


def test_a_record_that_goes_while_records_are_read_is_skipped(tmp_path):
    (tmp_path / "vllm").symlink_to(tmp_path / "gone")  # listed, and not there any more
    assert read_groups(tmp_path) == []
