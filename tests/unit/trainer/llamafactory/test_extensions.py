"""Remains of a killed build do not stop the next training."""

import os
import subprocess
import sys

import pytest

from rl_agent.trainer.llamafactory.extensions import UNTOUCHED_S, builds_folder, remove_abandoned_locks

HOLD = """
import os, sys, time
os.open(sys.argv[1], os.O_CREAT | os.O_EXCL)
print('held', flush=True)
time.sleep(600)
"""


@pytest.fixture
def lock(tmp_path):
    folder = tmp_path / "py311_cpu" / "deepspeed_shm_comm"
    folder.mkdir(parents=True)
    return folder / "lock"


class Time:
    """Passes only where somebody sleeps."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.lines: list[str] = []

    def clear(self, folder) -> None:
        remove_abandoned_locks(
            {"TORCH_EXTENSIONS_DIR": str(folder)},
            self.lines.append,
            clock=lambda: self.now,
            sleep=self.pass_by,
        )

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def test_a_lock_that_a_killed_build_left_is_removed(tmp_path, lock):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        process.kill()
    time = Time(lock.stat().st_mtime)
    begun = time.now
    time.clear(tmp_path)
    assert not lock.exists()
    assert UNTOUCHED_S <= time.now - begun < UNTOUCHED_S + 3
    assert "no process of this machine compiles" in time.lines[0] and "is gone" in time.lines[1]


def test_the_lock_of_a_build_that_goes_on_here_is_kept(tmp_path, lock):
    descriptor = os.open(lock, os.O_CREAT | os.O_EXCL)
    time = Time(lock.stat().st_mtime + 10 * UNTOUCHED_S)
    time.clear(tmp_path)
    os.close(descriptor)
    assert lock.exists() and not time.lines


def test_a_build_on_another_machine_is_given_time_while_it_writes(tmp_path, lock):
    lock.touch()
    time = Time(lock.stat().st_mtime)
    written = []

    def pass_by(seconds):
        time.now += seconds
        if len(written) < 150:
            written.append(lock.with_name("shm.o"))
            written[-1].touch()
            os.utime(written[-1], (time.now, time.now))
        else:
            lock.unlink(missing_ok=True)

    time.pass_by = pass_by
    time.clear(tmp_path)
    assert len(written) == 150 and len(time.lines) == 1


def test_builds_are_looked_for_where_torch_makes_them(tmp_path, monkeypatch):
    cpp_extension = pytest.importorskip("torch.utils.cpp_extension")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    assert str(builds_folder(os.environ)) == cpp_extension.get_default_build_root()
