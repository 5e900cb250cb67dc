"""Numbers of single optimizer steps in the metrics file, and in what reads it."""

import json
import math
from pathlib import Path

import pytest

from rl_agent.monitor.report import by_iteration
from rl_agent.trainer.llamafactory.worker import StepRecorder, callback, last_step


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def recorder(path: Path, iteration: int, *, begin_at: int) -> StepRecorder:
    steps = StepRecorder(path, iteration, clock=lambda: 12.5)
    steps.begin(begin_at)
    return steps


ENTRY = {"loss": 0.5, "grad_norm": 2.0, "learning_rate": 1e-3, "epoch": 0.1}


def test_a_log_entry_becomes_a_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    recorder(path, 3, begin_at=0).record(1, ENTRY)
    numbers = {"loss": 0.5, "learning_rate": 1e-3, "grad_norm": 2.0}
    names = {"time": 12.5, "iteration": 3, "phase": "update", "update_step": 1}
    assert lines(path) == [names | {f"update_step/{name}": value for name, value in numbers.items()}]


def test_the_summary_at_the_end_of_a_training_is_no_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    recorder(path, 1, begin_at=0).record(4, {"train_runtime": 3.0, "train_loss": 0.4, "epoch": 2.0})
    assert not path.exists()


def test_a_gradient_that_is_not_finite_leaves_the_rest_of_the_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    recorder(path, 1, begin_at=0).record(1, ENTRY | {"grad_norm": math.nan})
    assert "update_step/grad_norm" not in lines(path)[0]
    assert lines(path)[0]["update_step/loss"] == 0.5


@pytest.mark.parametrize("begins_at", [3, 0], ids=["continued", "afresh"])
def test_steps_are_counted_on_from_iteration_to_iteration(tmp_path, begins_at):
    path = tmp_path / "metrics.jsonl"
    first = recorder(path, 1, begin_at=0)
    for step in (1, 2, 3):
        first.record(step, ENTRY)
    for _ in range(2):  # an update that is repeated has the same steps
        second = recorder(path, 2, begin_at=begins_at)
        for step in (1, 2):
            second.record(begins_at + step, ENTRY)
    assert [line["update_step"] for line in lines(path)] == [1, 2, 3, 4, 5, 4, 5]
    assert last_step(path, before=3) == 5


def test_a_table_of_iterations_keeps_their_own_numbers(tmp_path):
    path = tmp_path / "metrics.jsonl"
    recorder(path, 1, begin_at=0).record(1, ENTRY)
    before, after = {"iteration": 1, "test/success_rate": 0.25}, {"iteration": 1, "update/loss": 0.5}
    row = by_iteration([before, *lines(path), after])[1]
    assert (row["test/success_rate"], row["update/loss"]) == (0.25, 0.5)


def test_the_steps_after_the_last_multiple_of_logging_steps_are_logged(tmp_path):
    from transformers import TrainerControl, TrainerState

    def is_logged(step: int) -> bool:
        control, state = TrainerControl(), TrainerState(global_step=step, max_steps=13)
        callback(recorder(tmp_path / "metrics.jsonl", 1, begin_at=0), 0).on_step_end(None, state, control)
        return control.should_log

    assert [is_logged(step) for step in (11, 12, 13)] == [False, False, True]
