"""Task files: one JSON object per line, checked in full before anything starts.

    {"task_id": "sum-1", "prompt": "1 + 1 =", "answer": "2", "difficulty": "easy", "env": "math", ...}

`task_id` and `prompt` (or `task_name`) are required, `env` and `difficulty` have defaults, and every field
that is not named here reaches the environment unchanged as `Task.extra`. The first bad line is an error.
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from rl_agent.config.sections.env import EnvConfig
from rl_agent.errors import ConfigError, TaskError
from rl_agent.system.json_values import problem_of
from rl_agent.types import Task

DIFFICULTIES = ("easy", "medium", "hard")
"""Every difficulty, easiest first."""

MAX_LINE_BYTES = 16 * 2**20
"""Each episode of a task records all of its line."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MAX_EASY, _MAX_MEDIUM = 3, 6  # numbers in a task file: easy up to 3, medium up to 6, hard above


def load_tasks(path: Path, env_config: EnvConfig) -> list[Task]:
    """Return the tasks of `path` in file order; blank lines are passed over.

    A file is read once in a process, as long as it is as it was.

    Raises ConfigError "FILE:LINE: what is wrong; what would be right" for the first line that is not a
    task, and ConfigError naming the file if it cannot be read or holds no task.
    """
    try:
        status = path.stat()
    except OSError:  # said below, in our words
        status = None
    unchanged = status and (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return list(_read_tasks(path, unchanged, env_config.default_env, frozenset(env_config.kinds)))


@lru_cache(maxsize=2)  # train and test
def _read_tasks(path: Path, unchanged: object, default_env: str, kinds: frozenset[str]) -> tuple[Task, ...]:
    lines = ((f"{path}:{number}", f"line {number}", line) for number, line in _lines(path))
    tasks = parse_tasks(lines, default_env, kinds)
    if not tasks:
        raise ConfigError(f"{path}: holds no task; write one JSON object per line")
    return tuple(tasks)


def parse_tasks(
    lines: Iterable[tuple[str, str, bytes]], default_env: str, kinds: frozenset[str]
) -> list[Task]:
    """Return the task of each JSON line, which comes with its place and what another line calls that.

    Raises ConfigError "PLACE: what is wrong; what would be right" for the first line that is not a task.
    """
    tasks: list[Task] = []
    place_of_id: dict[str, str] = {}
    for place, short_place, line in lines:
        try:
            task = _parse_task(_parse_object(line), default_env, kinds)
            if first := place_of_id.get(task.task_id):
                raise ValueError(f"task_id {task.task_id!r} is already used in {first}; make it unique")
        except ValueError as error:
            raise ConfigError(f"{place}: {error}") from None
        place_of_id[task.task_id] = short_place
        tasks.append(task)
    return tasks


@contextmanager
def naming_lines(paths: Iterable[Path], env_config: EnvConfig) -> Iterator[None]:
    """Begin a TaskError with FILE:LINE in each file that has the task, as the errors of reading begin."""
    try:
        yield
    except TaskError as error:
        places = [
            f"{path}:{number}"
            for path in dict.fromkeys(paths)
            for (number, _), task in zip(_lines(path), load_tasks(path, env_config), strict=False)
            if task.task_id == error.task_id
        ]
        raise ConfigError(f"{', '.join(places)}: {error}") from None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers from 1."""
    try:
        if not path.exists():
            raise ConfigError(f"{path}: no such file; name a task file (one JSON object per line)")
        if not path.is_file():
            raise ConfigError(f"{path}: not a file; name a task file (one JSON object per line)")
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if not text.isspace() and text:
                    yield number, text
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def _parse_object(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(
            f"the line has {len(line):,} bytes, a task at most {MAX_LINE_BYTES:,}; name large things by path"
        )
    try:
        record = json.loads(line.decode())
    except json.JSONDecodeError as error:
        raise ValueError(
            f"not JSON ({error.msg}, column {error.colno}); write one JSON object per line"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start + 1}); save the file as UTF-8") from None
    except RecursionError:
        raise ValueError("nested too deeply; flatten the object") from None
    if not isinstance(record, dict):
        raise ValueError(f'{_kind(record)} instead of an object; write {{"task_id": ..., "prompt": ...}}')
    if problem := problem_of(record, ""):
        where, _, what = problem.rpartition(": ")
        raise ValueError(f"{where.lstrip('.') or 'the object'}: {what}")
    return record


def _parse_task(record: dict[str, Any], default_env: str, kinds: frozenset[str]) -> Task:
    """Takes the named fields out of `record`; what is left is `extra`. Raises ValueError."""
    task_id = _text(record, "task_id")
    prompt_field = "prompt" if "prompt" in record else "task_name"
    prompt = _text(record, prompt_field)
    if not task_id:
        raise ValueError("no task_id; give every task a unique name")
    if _CONTROL.search(task_id):
        raise ValueError(f"task_id {task_id!r:.80} holds a control character; leave it out")
    if not prompt:
        raise ValueError("no prompt; write what the model is asked as prompt (or task_name)")
    env = _text(record, "env") or default_env
    if not env:
        raise ValueError("no env; name its environment, or give collect a reward or an environment")
    if env not in kinds:
        raise ValueError(f"unknown env {env!r}; use one of {', '.join(sorted(kinds))}")
    return Task(
        task_id=task_id,
        prompt=prompt,
        env=env,
        difficulty=_difficulty(record.pop("difficulty", None)),
        answer=_text(record, "answer"),
        extra=record,
    )


def _text(record: dict[str, Any], field: str) -> str | None:
    """Removes a string (or whole number) from `record`; None where it is missing, null or blank."""
    value = record.pop(field, None)
    if isinstance(value, str):
        return value if value.strip() else None
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{field} is {_kind(value)}; write a string")


def _difficulty(value: Any) -> str:
    if value is None:
        return "easy"
    if isinstance(value, str) and value in DIFFICULTIES:
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "easy" if value <= _MAX_EASY else "medium" if value <= _MAX_MEDIUM else "hard"
    shown = repr(value) if isinstance(value, str) else _kind(value)
    raise ValueError(f"difficulty is {shown}; use {', '.join(DIFFICULTIES)} or a number")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
