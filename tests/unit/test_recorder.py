"""The wandb recorder: every metrics line is handed on once, whatever happens in between."""

import json
import threading
from pathlib import Path

from rl_agent.monitor import metrics
from rl_agent.monitor.recorder import REDRAW_INTERVAL_S, CurvesRefresh, Recorder


def recorder(tmp_path: Path, seen: list[dict]) -> Recorder:
    return Recorder(tmp_path / "metrics.jsonl", tmp_path / "offset", seen.append)


def test_a_restarted_recorder_goes_on_behind_the_last_line_it_told(tmp_path):
    seen: list[dict] = []
    metrics.append(tmp_path / "metrics.jsonl", {"iteration": 1, "train/reward_mean": 0.5})
    recorder(tmp_path, seen).drain()
    metrics.append(tmp_path / "metrics.jsonl", {"iteration": 2, "train/reward_mean": 0.6})
    recorder(tmp_path, seen).drain()
    assert [record["iteration"] for record in seen] == [1, 2]


def test_a_line_that_is_still_being_written_waits_for_its_end(tmp_path):
    seen: list[dict] = []
    follower = recorder(tmp_path, seen)
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\n{"iterat')
    assert follower.drain() == 1
    with path.open("a") as file:
        file.write('ion": 2}\n')
    assert follower.drain() == 1
    assert seen == [{"iteration": 1}, {"iteration": 2}]


def test_only_numbers_are_recorded(tmp_path):
    seen: list[dict] = []
    metrics.append(tmp_path / "metrics.jsonl", {"time": 1.0, "iteration": 1, "split": "train", "x": 2})
    recorder(tmp_path, seen).drain()
    assert seen == [{"iteration": 1, "x": 2}]


def test_a_number_that_json_cannot_hold_is_left_out_and_the_rest_recorded(tmp_path):
    metrics.append(tmp_path / "metrics.jsonl", {"iteration": 1, "x": float("nan"), "y": float("inf")})
    assert list(metrics.read(tmp_path / "metrics.jsonl")) == [{"iteration": 1}]


def test_a_torn_last_line_is_passed_over_by_readers(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"iteration": 1}) + '\n{"iter')
    assert list(metrics.read(path)) == [{"iteration": 1}]


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

    def after(self, num_new: int, *, wait_s: float) -> int:
        self.now += wait_s
        self.refresh(num_new)
        if self.refresh.thread.ident is not None:
            self.refresh.thread.join()
        return self.count


def test_curves_are_drawn_when_records_came_and_not_more_often_than_the_interval():
    drawn = Drawn()
    assert drawn.after(0, wait_s=REDRAW_INTERVAL_S) == 0
    assert drawn.after(3, wait_s=0) == 1
    assert drawn.after(2, wait_s=REDRAW_INTERVAL_S / 2) == 1
    assert drawn.after(0, wait_s=REDRAW_INTERVAL_S / 2) == 2  # what came in between is drawn now
    assert drawn.after(0, wait_s=REDRAW_INTERVAL_S) == 2


def test_following_ends_when_told_to_and_records_what_came_last(tmp_path):
    seen: list[dict] = []
    stopped = threading.Event()

    def on_drained(count: int) -> None:
        metrics.append(tmp_path / "metrics.jsonl", {"iteration": 2})
        stopped.set()

    metrics.append(tmp_path / "metrics.jsonl", {"iteration": 1})
    recorder(tmp_path, seen).follow(stopped, on_drained)
    assert seen == [{"iteration": 1}, {"iteration": 2}]
