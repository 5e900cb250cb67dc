"""The wandb recorder: every metrics line is handed on once, whatever happens in between."""

import threading
from pathlib import Path

import pytest

from rl_agent.monitor import metrics
from rl_agent.monitor.recorder import FIRST_PAUSE_S, REDRAW_INTERVAL_S, CurvesRefresh, Recorder


class Wandb:
    """A server that keeps what was uploaded, and records that fail when told to."""

    def __init__(self) -> None:
        self.uploaded: dict[int, dict] = {}
        self.told: dict[int, dict] = {}
        self.offline: dict[int, dict] = {}
        self.is_down = False
        self.opened = 0
        self.samples: list = []

    def open(self) -> "FakeRecord":
        self.opened += 1
        if self.is_down:
            raise ConnectionError("returned error 401:\nno such key")
        self.told = dict(self.uploaded)
        return FakeRecord(self, self.told)

    def open_offline(self) -> "FakeRecord":
        return FakeRecord(self, self.offline)

    def upload(self) -> None:
        self.uploaded = dict(self.told)


class FakeRecord:
    def __init__(self, server: Wandb, steps: dict[int, dict]) -> None:
        self.server, self.steps = server, steps
        self.next_step = len(steps)

    def log(self, step: int, numbers: dict, samples=None) -> None:
        self.server.samples.append(samples)
        if self.server.is_down and self.steps is not self.server.offline:
            raise ConnectionResetError("Connection lost")
        assert step not in self.steps
        self.steps[step] = numbers

    def close(self) -> None:
        self.server.upload()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server():
    return Wandb()


@pytest.fixture
def lines(tmp_path):
    return tmp_path / "metrics.jsonl"


def add(lines: Path, *iterations: int) -> None:
    for iteration in iterations:
        metrics.append(lines, {"iteration": iteration})


def recorder(lines: Path, server: Wandb, clock: Clock | None = None) -> Recorder:
    return Recorder(lines, server.open, server.open_offline, clock=clock or Clock())


def steps(*iterations: int) -> dict[int, dict]:
    return {number: {"iteration": iteration} for number, iteration in enumerate(iterations)}


def test_a_recorder_killed_before_its_upload_repeats_only_what_is_missing(lines, server):
    add(lines, 1, 2)
    first = recorder(lines, server)
    first.drain()
    server.upload()
    add(lines, 3)
    first.drain()  # told, not uploaded, and killed
    add(lines, 4)
    recorder(lines, server).drain()
    assert server.told == steps(1, 2, 3, 4)


def test_a_broken_record_reopens_after_a_pause_where_wandb_stands(lines, server):
    clock = Clock()
    follower = recorder(lines, server, clock)
    add(lines, 1)
    follower.drain()
    server.upload()
    server.is_down = True
    add(lines, 2)
    assert follower.drain() and not follower.drain()
    server.is_down = False
    assert (follower.drain(), server.opened) == (False, 1), "not before the pause is over"
    clock.now += FIRST_PAUSE_S
    follower.drain()
    assert server.told == steps(1, 2)


def test_an_unreachable_server_leaves_an_offline_record(lines, server, caplog):
    server.is_down = True
    stopped = threading.Event()
    add(lines, 1)

    def on_drained(is_new: bool) -> None:
        assert is_new
        add(lines, 2)
        stopped.set()

    recorder(lines, server).follow(stopped, on_drained)
    assert (server.offline, server.told) == (steps(1, 2), {})
    assert "wandb: returned error 401: no such key; retrying in" in caplog.text


def test_a_line_that_is_still_being_written_waits_for_its_end(lines, server):
    follower = recorder(lines, server)
    lines.write_text('{"iteration": 1}\n{"iterat')
    follower.drain()
    assert server.told == steps(1)
    with lines.open("a") as file:
        file.write('ion": 2}\n')
    follower.drain()
    assert server.told == steps(1, 2)


def test_only_numbers_are_recorded(lines, server):
    metrics.append(lines, {"time": 1.0, "iteration": 1, "split": "train", "x": 2})
    recorder(lines, server).drain()
    assert server.told == {0: {"iteration": 1, "x": 2}}


def test_a_line_that_a_full_disk_cut_costs_that_line_alone(lines, server):
    lines.write_text('{"iteration": 1}\n{"iter')
    add(lines, 2, 3)
    assert [record["iteration"] for record in metrics.read(lines)] == [1, 2, 3]
    recorder(lines, server).drain()
    assert server.told == steps(1) | {1: {}, 2: {"iteration": 2}, 3: {"iteration": 3}}


class Drawn:
    """Counts drawings, at a time of its own."""

    def __init__(self) -> None:
        self.count = 0
        self.now = 100.0
        self.refresh = CurvesRefresh(self.draw, clock=lambda: self.now)

    def draw(self) -> None:
        self.count += 1
        if self.count == 1:
            raise OSError("no space left")

    def after(self, is_new: bool, *, wait_s: float) -> int:
        self.now += wait_s
        self.refresh(is_new)
        if self.refresh.thread.ident is not None:
            self.refresh.thread.join()
        return self.count


def test_curves_are_drawn_at_new_records_and_at_most_once_an_interval():
    drawn = Drawn()
    assert drawn.after(False, wait_s=REDRAW_INTERVAL_S) == 0
    assert drawn.after(True, wait_s=0) == 1
    assert drawn.after(True, wait_s=REDRAW_INTERVAL_S / 2) == 1
    assert drawn.after(False, wait_s=REDRAW_INTERVAL_S / 2) == 2  # what came in between is drawn now
    assert drawn.after(False, wait_s=REDRAW_INTERVAL_S) == 2


def test_following_ends_when_told_to_and_records_what_came_last(lines, server):
    stopped = threading.Event()

    def on_drained(is_new: bool) -> None:
        add(lines, 2)
        stopped.set()

    add(lines, 1)
    recorder(lines, server).follow(stopped, on_drained)
    assert server.uploaded == steps(1, 2)


def test_an_evaluation_is_recorded_with_the_bounds_of_its_intervals(lines, server):
    metrics.append(lines, {"iteration": 1, "test/pass@4": 0.5, "test/outcomes": {"": {"4/0": 10, "4/4": 10}}})
    recorder(lines, server).drain()
    (numbers,) = server.told.values()
    assert numbers["test/pass@4"] == 0.5
    assert numbers["test/pass@4_low"] == pytest.approx(0.299, abs=1e-3)
    assert "test/outcomes" not in numbers


def test_unreadable_samples_do_not_keep_the_numbers_from_being_recorded(lines, server):
    def find_samples(record):
        raise OSError("the store is gone")

    add(lines, 1)
    Recorder(lines, server.open, server.open_offline, find_samples=find_samples).drain()
    assert list(server.told) == [0] and server.samples == [{}]
