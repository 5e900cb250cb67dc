"""The task loader: every bad line is one clear error, every good file its tasks."""

import json
import time

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_agent.config.sections.env import EnvConfig
from rl_agent.errors import ConfigError, TaskError
from rl_agent.paths import PROJECT_ROOT
from rl_agent.tasks.load import DIFFICULTIES, load_tasks, naming_lines
from rl_agent.types import Task

DEFAULTS = yaml.safe_load((PROJECT_ROOT / "configs" / "env" / "default.yaml").read_text())
ENV_CONFIG = EnvConfig(**DEFAULTS | {"kinds": {"reasoning_gym": "a:B", "math": "c:D"}})


def load(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_tasks(path, ENV_CONFIG)


def test_a_task_that_cannot_be_run_is_named_by_file_and_line(path):
    load(path, '{"task_id": "a", "prompt": "?"}\n\n{"task_id": "b", "prompt": "?"}\n')
    other = path.with_name("test.jsonl")
    load(other, '{"task_id": "b", "prompt": "?"}\n')
    with (
        pytest.raises(ConfigError, match=rf"^{path}:3: task b: no answer$"),
        naming_lines([path, path], ENV_CONFIG),
    ):
        raise TaskError("task b: no answer", "b")
    with (
        pytest.raises(ConfigError, match=rf"^{path}:3, {other}:1: "),
        naming_lines([path, other], ENV_CONFIG),
    ):
        raise TaskError("task b: no answer", "b")


def load_one(path, **fields):
    return load(path, json.dumps({"task_id": "a", "prompt": "?"} | fields))[0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "train.jsonl"


def test_a_full_line_becomes_a_task_and_unknown_fields_are_kept(path):
    line = {"task_id": "a", "prompt": "1+1", "env": "math", "difficulty": "hard", "answer": "2"}
    (task,) = load(path, json.dumps(line | {"dataset": "sum", "entry_metadata": {"n": [1, 2.5]}}))

    assert task == Task(
        "a", "1+1", "math", "hard", "2", {"dataset": "sum", "entry_metadata": {"n": [1, 2.5]}}
    )


def test_the_shortest_line_gets_the_defaults(path):
    (task,) = load(path, '{"task_id": "a", "task_name": "book a flight"}')

    assert task == Task("a", "book a flight", "reasoning_gym", "easy", None, {})


def test_prompt_wins_over_task_name_which_is_kept(path):
    task = load_one(path, task_name="name")

    assert (task.prompt, task.extra) == ("?", {"task_name": "name"})


def test_blank_lines_a_byte_order_mark_and_windows_line_ends_are_accepted(path):
    content = b'\xef\xbb\xbf{"task_id": "a", "prompt": "x"}\r\n\r\n  \n{"task_id": "b", "prompt": "y"}'

    assert [task.task_id for task in load(path, content)] == ["a", "b"]


@pytest.mark.parametrize(
    ("number", "name"),
    [(-1, "easy"), (3, "easy"), (3.5, "medium"), (6, "medium"), (7, "hard"), (99, "hard"), (None, "easy")],
)
def test_a_number_or_null_is_a_difficulty(path, number, name):
    assert load_one(path, difficulty=number).difficulty == name


def test_whole_numbers_serve_as_id_and_answer(path):
    task = load_one(path, task_id=7, answer=42)

    assert (task.task_id, task.answer) == ("7", "42")


GOOD = '{"task_id": "a", "prompt": "x"}\n'


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (
            GOOD + '{"task_id": "b", "prompt": "x"',
            2,
            "not JSON .*column 31.*; write one JSON object per line",
        ),
        (GOOD + "[1, 2]", 2, "a list instead of an object"),
        (GOOD + "null", 2, "null instead of an object"),
        (GOOD + '{"prompt": "x"}', 2, "no task_id; give every task a unique name"),
        (GOOD + '{"task_id": " ", "prompt": "x"}', 2, "no task_id"),
        (GOOD + '{"task_id": "b"}', 2, "no prompt; write what the model is asked"),
        (GOOD + "\n" + GOOD, 3, "task_id 'a' is already used in line 1"),
        ('{"task_id": "7", "prompt": "x"}\n{"task_id": 7, "prompt": "x"}', 2, "already used in line 1"),
        ('{"task_id": ["a"], "prompt": "x"}', 1, "task_id is a list; write a string"),
        ('{"task_id": true, "prompt": "x"}', 1, "task_id is true or false; write a string"),
        ('{"task_id": "a", "prompt": {}}', 1, "prompt is an object; write a string"),
        ('{"task_id": "a", "prompt": "x", "answer": 1.5}', 1, "answer is a number; write a string"),
        (
            '{"task_id": "a", "prompt": "x", "env": "chess"}',
            1,
            "unknown env 'chess'; use one of math, reasoning",
        ),
        (
            '{"task_id": "a", "prompt": "x", "difficulty": "Easy"}',
            1,
            "difficulty is 'Easy'; use easy, medium, ",
        ),
        ('{"task_id": "a", "prompt": "x", "difficulty": true}', 1, "difficulty is true or false"),
        ('{"task_id": "a", "prompt": "x", "score": NaN}', 1, "score: nan is not JSON"),
        ('{"task_id": "a", "prompt": "\\ud800"}', 1, "prompt: holds half of a surrogate pair"),
        ('{"task_id": "a\\u0000", "prompt": "x"}', 1, r"task_id 'a\\x00' holds a control character"),
        (GOOD + '{"task_id": "b", "prompt": "' + "x" * 17_000_000 + '"}', 2, "a task at most 16,777,216"),
        (
            '{"task_id": "a", "prompt": "x", "deep": {"b": ' + "[" * 205 + "]" * 205 + "}}",
            1,
            r"deep\.b\[0\]\[0\].*: nested deeper than 64 levels; flatten it",
        ),
        ('{"task_id": "a", "prompt": "x", "deep": ' + "[" * 100_000, 1, "nested too deeply"),
        (GOOD.encode() + b'{"task_id": "\xff", "prompt": "x"}', 2, r"not UTF-8 \(byte 14\)"),
    ],
)
def test_a_bad_line_is_named_with_what_would_be_right(path, content, line, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load(path, content)

    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "\n \n", "\ufeff"])
def test_a_file_without_tasks_is_an_error(path, content):
    with pytest.raises(ConfigError, match="holds no task"):
        load(path, content)


def test_a_missing_file_and_a_folder_are_errors(path, tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load_tasks(path, ENV_CONFIG)
    with pytest.raises(ConfigError, match="not a file"):
        load_tasks(tmp_path, ENV_CONFIG)


def test_an_unreadable_file_is_an_error(path, monkeypatch):
    path.write_text(GOOD)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(ConfigError, match=r"cannot be read \(Permission denied\)"):
        load_tasks(path, ENV_CONFIG)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary() | st.lists(st.binary(), max_size=4).map(b"\n".join))
def test_any_bytes_are_tasks_or_a_config_error(path, content):
    try:
        assert load(path, content)
    except ConfigError as error:
        assert str(path) in str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from(["task_id", "prompt", "task_name", "env", "difficulty", "answer", "other"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(st.dictionaries(FIELDS, JSON) | JSON, max_size=4))
def test_any_json_is_tasks_that_can_be_written_or_a_config_error(path, records):
    try:
        tasks = load(path, "\n".join(json.dumps(record) for record in records))
    except ConfigError as error:
        assert str(path) in str(error)
        return
    for task in tasks:
        assert task.difficulty in DIFFICULTIES
        assert task.env in ENV_CONFIG.kinds
        json.dumps([task.prompt, task.extra], ensure_ascii=False, allow_nan=False).encode()


def test_loading_time_grows_with_the_lines_and_not_with_their_square(path):
    line = {"prompt": "p" * 200, "difficulty": 4, "answer": "1", "dataset": "sum", "entry_metadata": {"n": 3}}

    def cpu_s(count: int) -> float:
        content = "\n".join(json.dumps({"task_id": f"t{i}"} | line) for i in range(count))
        start = time.process_time()
        load(path, content)
        return time.process_time() - start

    few_s, many_s = (min(cpu_s(count) for _ in range(3)) for count in (1_000, 10_000))
    assert many_s < 40 * few_s  # of a hundred times where each line is held against all others
