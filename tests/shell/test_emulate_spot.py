"""Emulated spot machines have GPUs of their own."""

import importlib.util
import itertools

import pytest

from rl_agent.errors import UsageError
from rl_agent.paths import PROJECT_ROOT

PIDS = itertools.count(10**9)
SPEC = importlib.util.spec_from_file_location("emulate_spot", PROJECT_ROOT / "scripts" / "emulate_spot.py")
emulate_spot = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(emulate_spot)


class Process:
    """Runs until it is signalled."""

    def __init__(self, command: list[str], **_: object) -> None:
        self.words = command[command.index("join-pool") + 1 :]
        self.pid = next(PIDS)
        self.status: int | None = None

    def poll(self) -> int | None:
        return self.status


@pytest.fixture
def started(monkeypatch) -> list[Process]:
    processes: list[Process] = []

    def start(command: list[str], **settings: object) -> Process:
        processes.append(Process(command, **settings))
        return processes[-1]

    def end(worker: Process, number: int) -> None:
        worker.status = -number

    monkeypatch.setattr(emulate_spot.subprocess, "Popen", start)
    monkeypatch.setattr(emulate_spot, "_signal", end)
    return processes


def test_a_replacement_has_the_gpus_of_the_one_that_left(started):
    machines = emulate_spot.Machines(["--price", "2"], gpus_each=2)
    machines.join()
    machines.join()
    machines.take_oldest(with_notice=False)
    machines.join()
    machines.join()
    assert [process.words for process in started] == [
        ["--price", "2", "--gpus", gpus] for gpus in ("0,1", "2,3", "0,1", "4,5")
    ]


def test_gpus_of_one_that_still_drains_are_not_given_away(started, monkeypatch):
    monkeypatch.setattr(emulate_spot, "_signal", lambda worker, number: None)
    machines = emulate_spot.Machines([], gpus_each=1)
    machines.join()
    machines.take_oldest(with_notice=True)
    machines.join()
    assert [process.words[-1] for process in started] == ["0", "1"]


def test_without_the_flag_a_worker_has_what_was_said_of_it(started):
    machines = emulate_spot.Machines(["--gpus", "7"])
    machines.join()
    assert started[0].words == ["--gpus", "7"]


def test_no_gpus_for_each_is_a_usage_error():
    with pytest.raises(UsageError, match="--gpus-each 0"):
        emulate_spot.main(["--gpus-each", "0"])


def test_gpus_for_all_workers_and_for_each_are_refused_before_a_start(started):
    with pytest.raises(UsageError, match=r"^--gpus-each .*: leave --gpus out after --$"):
        emulate_spot.main(["--gpus-each", "1", "--", "--manager", "http://127.0.0.1:1", "--gpus=0"])
    assert started == []
