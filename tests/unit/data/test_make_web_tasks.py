"""The task files that `data/make_web_tasks.py` writes."""

import json
import sys

import pytest

from rl_agent.env.web.environment import WebEnvironment
from rl_agent.paths import PROJECT_ROOT
from rl_agent.types import Task

sys.path.insert(0, str(PROJECT_ROOT / "data"))

import make_web_tasks


def written(folder, *arguments):
    make_web_tasks.main([*arguments, "--out", str(folder), "--train-size", "210", "--test-size", "30"])
    return {
        split: [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]
        for split in ("train", "test")
    }


@pytest.mark.parametrize("preset", ["miniwob", "shop"])
def test_every_task_can_be_shown_and_no_seed_is_in_both_splits(tmp_path, preset):
    files = written(tmp_path, preset)
    assert [len(files[split]) for split in ("train", "test")] == [210, 30]
    seeds = {split: {task["seed"] for task in tasks} for split, tasks in files.items()}
    assert not seeds["train"] & seeds["test"]
    assert len({task["task_id"] for tasks in files.values() for task in tasks}) == 240
    for task in files["test"]:
        WebEnvironment.check_task(Task(task["task_id"], task["prompt"], "web", "easy", extra=task), {})


def test_the_same_command_writes_the_same_files(tmp_path):
    assert written(tmp_path, "miniwob", "--task", "click-tab") == written(
        tmp_path, "miniwob", "--task", "click-tab"
    )


@pytest.mark.parametrize(("preset", "name"), [("miniwob", "click-nothing"), ("shop", "steal")])
def test_a_name_that_is_no_task_is_refused_by_name(tmp_path, preset, name):
    with pytest.raises(SystemExit, match=name):
        written(tmp_path, preset, "--task", name)
