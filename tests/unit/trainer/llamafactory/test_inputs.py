"""Nodes train on the files of this update, and on nothing older."""

from pathlib import Path

import pytest

from rl_agent.errors import ConfigError, DeadlineError
from rl_agent.trainer.llamafactory.inputs import (
    SUMMARY_FILE,
    TRAIN_FILE,
    UpdateSummary,
    await_inputs,
    read_summary,
    withdraw_summary,
)
from tests.unit.trainer.llamafactory.trainings import write_update_summary

DATASET_FILE = "dataset/train/data-00000-of-00001.arrow"
INFO_FILE = "dataset/train/dataset_info.json"


def write_inputs(folder: Path, *, nodes: int = 2, text: str = "one") -> UpdateSummary:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DATASET_FILE).parent.mkdir(parents=True, exist_ok=True)
    for name in (DATASET_FILE, INFO_FILE, TRAIN_FILE):
        (folder / name).write_text(f"{name} {text}")
    return write_update_summary(folder, tasks=4, nodes=nodes)


class SharedFolder:
    """A clock that moves as one sleeps, and a file system that shows a change after so many sleeps."""

    def __init__(self, change=lambda: None, after_s: float = 1.0):
        self.now, self._change, self._due = 0.0, change, after_s

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self._due:
            self._change()

    def wait(self, folder: Path, nodes: int, timeout_s: float) -> list[str]:
        lines: list[str] = []
        await_inputs(folder, nodes, timeout_s, clock=lambda: self.now, sleep=self.sleep, on_wait=lines.append)
        return lines


def test_a_summary_is_read_back_as_it_was_written(tmp_path):
    summary = write_inputs(tmp_path)
    assert read_summary(tmp_path) == summary
    assert set(summary.files) == {DATASET_FILE, INFO_FILE, TRAIN_FILE}


def test_inputs_that_are_there_are_not_waited_for(tmp_path):
    write_inputs(tmp_path)
    shared = SharedFolder()
    assert shared.wait(tmp_path, 2, 0.0) == []
    assert shared.now == 0.0


def test_a_node_waits_until_it_sees_the_inputs_and_says_so_once(tmp_path):
    folder = tmp_path / "iteration1"
    [line] = SharedFolder(lambda: write_inputs(folder)).wait(folder, 2, 60.0)
    assert "update.json: there is no such file" in line
    assert "waiting up to 60 s" in line


@pytest.mark.parametrize("name", [DATASET_FILE, TRAIN_FILE, INFO_FILE])
def test_a_file_of_an_earlier_update_is_not_trained_on(tmp_path, name):
    write_inputs(tmp_path)
    new = (tmp_path / name).read_text()
    old = new.replace("one", "two")  # as long, but another content
    (tmp_path / name).write_text(old)
    [line] = SharedFolder(lambda: (tmp_path / name).write_text(new)).wait(tmp_path, 2, 60.0)
    assert f"{name}: differs from what was written" in line


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / DATASET_FILE).unlink(), r"arrow: cannot be read .*; waited 60 s for"),
        (lambda folder: (folder / TRAIN_FILE).write_text("x"), r"train\.yaml: has 1 of the 14 bytes"),
        (withdraw_summary, r"update\.json: there is no such file; run prepare-update first"),
        (lambda folder: (folder / SUMMARY_FILE).write_text("{}"), "cannot be read; run prepare-update again"),
        (lambda folder: write_inputs(folder, nodes=3), r"was prepared for --nodes 3, not 2"),
    ],
)
def test_lasting_faults_end_the_wait_with_their_name(tmp_path, damage, message):
    write_inputs(tmp_path)
    damage(tmp_path)
    with pytest.raises(DeadlineError, match=message):
        SharedFolder().wait(tmp_path, 2, 60.0)


def test_an_update_that_was_withdrawn_cannot_be_trained_on(tmp_path):
    write_inputs(tmp_path)
    withdraw_summary(tmp_path)
    with pytest.raises(ConfigError, match="run prepare-update first"):
        read_summary(tmp_path)
