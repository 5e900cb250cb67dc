"""The settings of agents' programs: `env_config.kwargs.agent`."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from rl_agent.http.tokens import TokenCheck, host_and_port, is_loopback
from rl_agent.types import Task

PRINTED, EXIT, POSTED, NONE = "printed", "exit", "posted", "none"
"""Rewards that no environment scores: last line printed, exit status, posted, none (a judge gives one)."""
_FIELD = re.compile(r"\{(\w+)\}")


def _words(command: Any) -> Any:
    return shlex.split(command) if isinstance(command, str) else command


def _address(listen: Any) -> Any:
    return listen if listen is None else host_and_port(str(listen), "the address")


Word = Annotated[str | None, BeforeValidator(lambda value: None if value is None else str(value))]


class AgentSettings(BaseModel):
    """The settings of a program; the configuration's page describes them."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    command: Annotated[tuple[str, ...], BeforeValidator(_words)] = ()
    listen: Annotated[tuple[str, int] | None, BeforeValidator(_address)] = None
    """The address at which programs connect that run already; None: the command is started."""
    token_file: Path | None = None
    env: dict[str, Word] = {}
    cwd: str | None = None
    reward: str
    crash_reward: float | None = None
    """The reward where the program ends with an error; None: it costs an attempt at the episode."""

    @model_validator(mode="before")
    @classmethod
    def _with_reward(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Leave out what is null, and give the reward its default."""
        settings = {name: value for name, value in given.items() if value is not None}
        return {"reward": POSTED if "listen" in settings else PRINTED} | settings

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        if bool(self.command) == (self.listen is not None):
            raise ValueError(
                "give command, the words that start your agent, as in 'python my_agent.py'; or listen, the"
                " address for one that runs already"
            )
        if self.listen is not None and self.token_file is None and not is_loopback(self.listen[0]):
            raise ValueError("listen: only loopback may be served without a token; give token_file")
        if self.listen is not None and self.reward in (PRINTED, EXIT):
            raise ValueError(
                f"reward={self.reward}: use {POSTED}, {NONE}, math, or FILE.py:FUNCTION of yours"
            )
        return self

    @property
    def scorer(self) -> str:
        """Return the kind of environment that scores what the program prints; empty if none does."""
        return "" if self.reward in (PRINTED, EXIT, POSTED, NONE) else self.reward

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
        return TokenCheck.of(self.token_file, "env_config.kwargs.agent.token_file")

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
