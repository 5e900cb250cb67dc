"""An agent that is a program: LangGraph, OpenAI's or your own, whatever speaks OpenAI's API.

task ─► stdin, {fields} of the command ─► program ─► exit 0 ─► reward: printed, of the exit, a scorer's
                 OPENAI_BASE_URL ▲  │ chat                └ else the attempt is lost, with its last words
                                 └──┘ completions
"""

import json
import math
import os
from typing import Any, ClassVar

from rl_agent.env.agent.listener import AgentListener
from rl_agent.env.agent.program import ProgramEnd, environment_of, last_line, run_program
from rl_agent.env.agent.session import AgentSession
from rl_agent.env.agent.settings import EXIT, PRINTED, AgentSettings, fields_of
from rl_agent.errors import EnvironmentFailure, EnvironmentRefusal, EnvironmentUnavailable
from rl_agent.types import Observation, StepResult, Task

CANNOT_RUN = 126
"""The exit statuses from here on are the shell's and the kernel's, not the program's."""


class AgentEnvironment:
    """Runs a program for each episode; made with `env_config.kwargs.agent`."""

    is_cooperative = True
    _listener: ClassVar[AgentListener | None] = None

    def __init__(self, **kwargs: Any) -> None:
        self._settings = AgentSettings.of(**kwargs)

    @staticmethod
    def check_settings(**kwargs: Any) -> None:
        """Raises ValueError for a wrong setting, EnvironmentUnavailable for a program that is not here."""
        try:
            AgentSettings.of(**kwargs).check_here()
        except LookupError as error:
            raise EnvironmentUnavailable(f"env_config.kwargs.agent.{error}") from None

    @staticmethod
    def check_task(task: Task, kwargs: dict[str, Any]) -> None:
        AgentSettings.of(**kwargs).command_of(task)

    @staticmethod
    def scorer(**kwargs: Any) -> str:
        """Return the kind of environment that scores what the program prints; empty if none does."""
        return AgentSettings.of(**kwargs).scorer

    async def run(self, task: Task, seed: int, session: AgentSession) -> StepResult:
        settings = self._settings
        cls = type(self)
        listener = cls._listener = cls._listener or AgentListener()
        await listener.start()
        with listener.serving(session) as base_url:
            try:
                end = await run_program(
                    settings.command_of(task),
                    variables=environment_of(os.environ, settings.env, base_url),
                    cwd=settings.cwd,
                    stdin=json.dumps(fields_of(task)).encode() + b"\n",
                )
            except (OSError, ValueError) as error:
                raise EnvironmentRefusal(f"the agent's program cannot be started: {error}") from error
        session.log(f"exit status {end.code}\n{end.stderr}{end.stdout}")
        if end.code and (settings.reward != EXIT or end.code >= CANNOT_RUN):
            if settings.crash_reward is not None and end.code < CANNOT_RUN:
                return StepResult(Observation(end.last_words), settings.crash_reward, invalid=True)
            raise EnvironmentFailure(f"the agent's program ended with status {end.code}: {end.last_words}")
        rewards = _printed(end) if settings.reward == PRINTED else {}
        reward = float(not end.code) if settings.reward == EXIT else rewards.pop("", 0.0)
        return StepResult(Observation(end.stdout.strip()), reward, done=True, rewards=rewards)

    async def close(self) -> None:
        """The program ends with `run`."""

    @classmethod
    async def close_shared(cls) -> None:
        """Stop listening."""
        listener, cls._listener = cls._listener, None
        if listener is not None:
            await listener.close()


def _printed(end: ProgramEnd) -> dict[str, float]:
    """Return the reward in the last line of a program's output: its number as that of "", or named ones."""
    line = last_line(end.stdout)
    try:
        value = json.loads(line)
        named = value if isinstance(value, dict) else {"": value}
        rewards = {name: math.nan if isinstance(one, str) else float(one) for name, one in named.items()}
    except (ValueError, TypeError, OverflowError, RecursionError):
        rewards = {"": math.nan}
    if not all(map(math.isfinite, rewards.values())):
        raise EnvironmentRefusal(
            f"the agent's program did not print a reward: its last line is {line[:80]!r}, not a number or an"
            " object of numbers; print one, or set env_config.kwargs.agent.reward"
        )
    return rewards
