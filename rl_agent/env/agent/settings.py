"""The settings of agents' programs: `env_config.kwargs.agent`."""

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_agent.errors import ConfigError
from rl_agent.http.tokens import TokenCheck, host_and_port, is_loopback, read_tokens
from rl_agent.types import Task

PRINTED, EXIT, POSTED, NONE = "printed", "exit", "posted", "none"
"""Rewards that no environment scores: last line printed, exit status, posted, none (a judge gives one)."""
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings of a program, checked; the configuration's page describes them."""

    command: tuple[str, ...] = ()
    listen: tuple[str, int] | None = None
    """The address at which programs connect that run already; None: the command is started."""
    token_file: Path | None = None
    env: dict[str, str | None] = field(default_factory=dict)
    cwd: str | None = None
    reward: str = PRINTED
    crash_reward: float | None = None
    """The reward where the program ends with an error; None: it costs an attempt at the episode."""

    @property
    def scorer(self) -> str:
        """Return the kind of environment that scores what the program prints; empty if none does."""
        return "" if self.reward in (PRINTED, EXIT, POSTED, NONE) else self.reward

    @classmethod
    def of(
        cls,
        *,
        command: Any = None,
        listen: Any = None,
        token_file: Any = None,
        env: Any = None,
        cwd: Any = None,
        reward: Any = None,
        crash_reward: Any = None,
    ) -> "AgentSettings":
        """Read the keys. Raises ValueError that names the one that is wrong."""
        words = shlex.split(command) if isinstance(command, str) else command
        if listen is not None and command is not None:
            raise ValueError("listen: programs connect there that run already; leave out command")
        address = None if listen is None else _address(listen, token_file)
        reward = reward or (PRINTED if address is None else POSTED)
        if address is not None:
            words = []
        elif not isinstance(words, list | tuple) or not words or not all(isinstance(w, str) for w in words):
            raise ValueError(
                "command: give the words that start your agent, as in 'python my_agent.py'; or give listen,"
                " the address for one that runs already"
            )
        if not isinstance(env or {}, Mapping):
            raise ValueError("env is not a group of names and words")
        if not isinstance(cwd, str | None):
            raise ValueError(f"cwd is {cwd!r}; name a folder")
        of_program = "" if address is not None else f"{PRINTED}, {EXIT}, "
        if not isinstance(reward, str) or (address is not None and reward in (PRINTED, EXIT)):
            raise ValueError(
                f"reward is {reward!r}; use {of_program}{POSTED}, {NONE}, math, or FILE.py:FUNCTION of yours"
            )
        if isinstance(crash_reward, bool) or not isinstance(crash_reward, int | float | None):
            raise ValueError(f"crash_reward is {crash_reward!r}; use a number, or null")
        variables = {str(name): None if value is None else str(value) for name, value in (env or {}).items()}
        file = None if token_file is None else Path(token_file)
        return cls(tuple(words), address, file, variables, cwd, reward, crash_reward)

    def check_here(self) -> None:
        """Raises LookupError for a program, its Python file or a folder that is not on this machine.

        Raises ConfigError for a token file that cannot be used.
        """
        if self.listen is not None:
            self.tokens()
            return
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

    def tokens(self) -> TokenCheck:
        """Return the tokens that programs must know; none are needed without a file. Raises ConfigError."""
        key = "env_config.kwargs.agent.token_file"
        tokens = () if self.token_file is None else read_tokens(self.token_file, key)
        if self.token_file is not None and not tokens:
            raise ConfigError(f"{key}={self.token_file}: there is no token in it; write one")
        return TokenCheck(tokens, self.token_file)

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


def _address(listen: Any, token_file: Any) -> tuple[str, int]:
    host, port = host_and_port(str(listen), "listen")
    if not is_loopback(host) and token_file is None:
        raise ValueError(f"listen={listen}: only loopback may be served without a token; give token_file")
    return host, port


def fields_of(task: Task) -> dict[str, Any]:
    """Return the fields of a task's line."""
    fields = task.extra | {"task_id": task.task_id, "prompt": task.prompt, "difficulty": task.difficulty}
    return fields if task.answer is None else fields | {"answer": task.answer}
