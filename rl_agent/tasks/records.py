"""Reads tasks from what a program has: a task file, dicts, a pandas frame, or a Hugging Face dataset."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rl_agent.config.sections.env import EnvConfig
from rl_agent.errors import ConfigError
from rl_agent.tasks.load import load_tasks, parse_tasks
from rl_agent.types import Task


@runtime_checkable
class DataFrameLike(Protocol):
    """The part of a pandas data frame that is read."""

    def itertuples(self) -> Iterable[Any]: ...
    def to_json(self, *, orient: Any, lines: bool, double_precision: int) -> Any: ...


Tasks = str | Path | Iterable[Mapping[str, Any]] | DataFrameLike
"""A JSONL file; or a row for each task, with the fields that a line of such a file has."""


def tasks_of(source: Tasks, env_config: EnvConfig) -> list[Task]:
    """Return the tasks in order; a row without a `task_id` has its number, from 0, as one.

    Raises ConfigError that names the row, and what would be right.
    """
    if isinstance(source, str | Path):
        return load_tasks(Path(source).expanduser(), env_config)
    numbered = (
        (f"task {number}", f"task {number}", _line(number, row)) for number, row in enumerate(_rows(source))
    )
    tasks = parse_tasks(numbered, env_config.default_env, frozenset(env_config.kinds))
    if not tasks:
        raise ConfigError("tasks: there is no task")
    return tasks


def _rows(source: Iterable[Mapping[str, Any]] | DataFrameLike) -> Iterator[Mapping[str, Any]]:
    if isinstance(source, DataFrameLike):  # its values are NumPy's
        yield from map(
            json.loads, source.to_json(orient="records", lines=True, double_precision=15).splitlines()
        )
    else:
        yield from source


def _line(number: int, row: Mapping[str, Any]) -> bytes:
    if not isinstance(row, Mapping):
        raise ConfigError(f"task {number}: is {type(row).__name__}; give a dict with its fields")
    try:
        return json.dumps({"task_id": str(number), **row}).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"task {number}: {error}; give strings, numbers, lists and dicts") from None
