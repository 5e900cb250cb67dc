"""LLaMA-Factory's log tells where a training is, how long it will take, and its numbers afterwards."""

import json
from dataclasses import replace

import pytest

from rl_agent.trainer.llamafactory.inputs import TRAIN_FILE
from rl_agent.trainer.llamafactory.training_log import LOG, TrainingProgress, metrics_of
from tests.unit.trainer.llamafactory.trainings import write_update_summary


def log_step(folder, step, loss=0.5, end="\n"):
    with (folder / LOG).open("a") as file:
        file.write(json.dumps({"current_steps": step, "total_steps": 140, "loss": loss}) + end)


def test_a_line_says_the_step_the_loss_and_the_time_left(tmp_path):
    progress = TrainingProgress(tmp_path, 2)
    assert progress.line(1.0) == ""
    log_step(tmp_path, 50)
    assert progress.line(5.0) == "update 2 50/140  loss 0.500"
    log_step(tmp_path, 60, loss=0.25)
    assert progress.line(15.0) == "update 2 60/140  loss 0.250  1:20 left"
    assert progress.line(15.0, has_bar=True) == "update 2 ▇▇▇▇▁▁▁▁▁▁ 60/140  loss 0.250  1:20 left"


def test_a_line_that_is_being_written_is_not_read(tmp_path):
    progress = TrainingProgress(tmp_path, 2)
    log_step(tmp_path, 50)
    log_step(tmp_path, 60, end="")
    assert progress.line(10.0).startswith("update 2 50/140")


def test_the_steps_of_an_earlier_start_are_not_taken_for_progress(tmp_path):
    log_step(tmp_path, 50)
    progress = TrainingProgress(tmp_path, 2)
    assert progress.line(5.0) == ""


def test_lines_without_a_loss_are_passed_over(tmp_path):
    progress = TrainingProgress(tmp_path, 2)
    log_step(tmp_path, 50)
    with (tmp_path / LOG).open("a") as file:
        file.write('{"current_steps": 60, "total_steps": 140, "eval_loss": 1}\n')
    assert "50/140" in progress.line(5.0)


@pytest.mark.parametrize(
    "logged, mean, what",
    [
        ([(13, 1.0)], 1.0, "three steps, fewer than logging_steps"),
        ([(20, 3.0), (22, 1.0)], (10 * 3.0 + 2 * 1.0) / 12, "the last line is the mean of two steps"),
        ([(20, 9.0), (30, 1.0), (20, 3.0), (30, 1.0)], 2.0, "an interrupted update logs its steps again"),
    ],
)
def test_the_loss_of_an_update_is_the_mean_over_all_of_its_steps(tmp_path, logged, mean, what):
    (tmp_path / TRAIN_FILE).touch()
    summary = replace(write_update_summary(tmp_path), first_step=10)
    for step, loss in logged:
        log_step(tmp_path, step, loss)
    assert metrics_of(tmp_path, summary)["update/loss"] == pytest.approx(mean), what


def test_a_line_that_was_cut_by_a_kill_costs_itself_alone(tmp_path):
    (tmp_path / TRAIN_FILE).touch()
    summary = write_update_summary(tmp_path)
    step = summary.first_step + 1
    log_step(tmp_path, step, 0.5)
    with (tmp_path / LOG).open("a") as file:
        file.write('{"current_steps": ' + str(step + 1))  # and the next start goes on behind it
    log_step(tmp_path, step + 1, 7.0)
    log_step(tmp_path, step + 2, 1.5)
    assert metrics_of(tmp_path, summary)["update/loss_last"] == 1.5
