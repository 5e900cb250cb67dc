"""Tasks from what a program has; each row is read as a line of a task file is."""

import re

import datasets
import numpy as np
import pandas as pd
import pytest

from rl_agent.config.overrides.compose import RUN, compose_words
from rl_agent.errors import ConfigError
from rl_agent.tasks.records import tasks_of

ROWS = [
    {"prompt": "1 + 1 =", "answer": "2", "level": 0.1},
    {"prompt": "2 + 2 =", "answer": "4", "level": 0.2},
]


@pytest.fixture(scope="module")
def env_config():
    words = ["data_path=.", "log_path=.", "env_config.default_env=math"]
    return compose_words(RUN, words).env_config


def rows_of(tasks):
    return [{"prompt": task.prompt, "answer": task.answer, **task.extra} for task in tasks]


@pytest.mark.parametrize(
    "source",
    [ROWS, iter(ROWS), pd.DataFrame(ROWS), datasets.Dataset.from_list(ROWS)],
    ids=lambda s: type(s).__name__,
)
def test_rows_of_any_kind_become_the_same_tasks(source, env_config):
    tasks = tasks_of(source, env_config)
    assert rows_of(tasks) == ROWS
    assert [(task.task_id, task.env) for task in tasks] == [("0", "math"), ("1", "math")]


def test_a_file_is_read_as_a_run_reads_it(tmp_path, env_config):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"task_id": "a", "prompt": "1 + 1 =", "answer": "2", "difficulty": 5}\n')
    (task,) = tasks_of(str(file), env_config)
    assert (task.task_id, task.difficulty) == ("a", "medium")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([ROWS[0], {"answer": "2"}], "task 1: no prompt"),
        ([ROWS[0], ROWS[1] | {"task_id": "0"}], "task 1: task_id '0' is already used in task 0"),
        (["1 + 1 ="], "task 0: is str; give a dict"),
        ([ROWS[0] | {"level": np.float32(0.1)}], "task 0: Object of type float32 is not JSON serializable"),
        ([ROWS[0] | {"level": float("nan")}], "task 0: level: nan is not JSON"),
    ],
)
def test_a_row_that_is_no_task_is_named(rows, problem, env_config):
    with pytest.raises(ConfigError, match=re.escape(problem)):
        tasks_of(rows, env_config)
