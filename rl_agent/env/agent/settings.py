"""The settings of an agent's program: `env_config.kwargs.agent`."""

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_agent.types import Task

PRINTED, EXIT, NONE = "printed", "exit", "none"
"""Rewards that no environment scores: the last line printed, the exit status, none (a judge gives one)."""
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings of a program, checked; the configuration's page describes them."""

    command: tuple[str, ...]
    env: dict[str, str | None] = field(default_factory=dict)
    cwd: str | None = None
    reward: str = PRINTED
    crash_reward: float | None = None
    """The reward where the program ends with an error; None: it costs an attempt at the episode."""

    @property
    def scorer(self) -> str:
        """Return the kind of environment that scores what the program prints; empty if none does."""
        return "" if self.reward in (PRINTED, EXIT, NONE) else self.reward

    @classmethod
    def of(
        cls,
        *,
        command: Any = None,
        env: Any = None,
        cwd: Any = None,
        reward: Any = PRINTED,
        crash_reward: Any = None,
    ) -> "AgentSettings":
        """Read the keys. Raises ValueError that names the one that is wrong."""
        words = shlex.split(command) if isinstance(command, str) else command
        if not isinstance(words, list | tuple) or not words or not all(isinstance(w, str) for w in words):
            raise ValueError("command: give the words that start your agent, as in 'python my_agent.py'")
        if not isinstance(env or {}, Mapping):
            raise ValueError("env is not a group of names and words")
        if not isinstance(cwd, str | None):
            raise ValueError(f"cwd is {cwd!r}; name a folder")
        if not isinstance(reward, str) or not reward:
            raise ValueError(
                f"reward is {reward!r}; use {PRINTED}, {EXIT}, {NONE}, math, or FILE.py:FUNCTION of yours"
            )
        if isinstance(crash_reward, bool) or not isinstance(crash_reward, int | float | None):
            raise ValueError(f"crash_reward is {crash_reward!r}; use a number, or null")
        variables = {str(name): None if value is None else str(value) for name, value in (env or {}).items()}
        return cls(tuple(words), variables, cwd, reward, crash_reward)

    def check_here(self) -> None:
        """Raises LookupError for a program, its Python file or a folder that is not on this machine."""
        if self.cwd is not None and not Path(self.cwd).is_dir():
            raise LookupError(f"cwd={self.cwd}: there is no such folder")
        program = self.command[0]
        here = str(Path(self.cwd or ".") / program) if "/" in program else program
        if shutil.which(here, path=self.env.get("PATH")) is None:
            raise LookupError(f"command: there is no program {program}")
        script = next((word for word in self.command[1:] if not word.startswith("-")), "")
        is_script = Path(program).name.startswith("python") and script.endswith(".py")
        if is_script and not _FIELD.search(script) and not (Path(self.cwd or ".") / script).is_file():
            raise LookupError(f"command: there is no file {script}")

    def command_of(self, task: Task) -> list[str]:
        """Return the words of the command with a task's fields in place of `{prompt}`, `{task_id}`, ….

        Raises ValueError for a field that the task lacks.
        """
        fields = fields_of(task)

        def value(match: re.Match[str]) -> str:
            if match[1] not in fields:
                raise ValueError(f"no field {match[1]}, which the agent's command names")
            return str(fields[match[1]])

        return [_FIELD.sub(value, word) for word in self.command]


def fields_of(task: Task) -> dict[str, Any]:
    """Return the fields of a task's line."""
    fields = task.extra | {"task_id": task.task_id, "prompt": task.prompt, "difficulty": task.difficulty}
    return fields if task.answer is None else fields | {"answer": task.answer}
