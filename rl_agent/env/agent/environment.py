"""An agent that is a program: LangGraph, OpenAI's or your own, whatever speaks OpenAI's API.

task ─► stdin, {fields} of the command ─► program ─► exit 0 ─► reward: printed, posted, of the exit, scored
                 OPENAI_BASE_URL ▲  │ chat                └ else the attempt is lost, with its last words
                                 └──┘ completions

Or the program runs already, elsewhere, and takes the task as a session (`listen`).
"""

import json
import os
from functools import partial
from typing import Any, ClassVar

from rl_agent.env.agent.listener import AgentListener
from rl_agent.env.agent.program import environment_of, run_program
from rl_agent.env.agent.rewards import printed, read_end
from rl_agent.env.agent.session import AgentSession
from rl_agent.env.agent.settings import EXIT, POSTED, PRINTED, AgentSettings, fields_of
from rl_agent.env.values import settings_from
from rl_agent.errors import EnvironmentFailure, EnvironmentRefusal, EnvironmentUnavailable
from rl_agent.types import Observation, StepResult, Task

CANNOT_RUN = 126
"""The exit statuses from here on are the shell's and the kernel's, not the program's."""


class AgentEnvironment:
    """Runs a program for each episode, or lets one play it; made with `env_config.kwargs.agent`."""

    is_cooperative = True
    stays_open: ClassVar[bool] = False
    """True while programs may wait at an address for the next rollout of this process."""
    _listeners: ClassVar[dict[tuple[str, int] | None, AgentListener]] = {}

    def __init__(self, **kwargs: Any) -> None:
        self._settings = settings_from(AgentSettings, kwargs)

    @staticmethod
    def check_settings(**kwargs: Any) -> None:
        """Raises ValueError for a wrong setting, EnvironmentUnavailable for a program that is not here."""
        try:
            settings_from(AgentSettings, kwargs).check_here()
        except LookupError as error:
            raise EnvironmentUnavailable(f"env_config.kwargs.agent.{error}") from None

    @staticmethod
    def check_task(task: Task, kwargs: dict[str, Any]) -> None:
        settings_from(AgentSettings, kwargs).command_of(task)

    @staticmethod
    def scorer(**kwargs: Any) -> str:
        """Return the kind of environment that scores what the program answers; empty if none does."""
        return settings_from(AgentSettings, kwargs).scorer

    async def run(self, task: Task, seed: int, session: AgentSession) -> StepResult:
        settings, listener = self._settings, await self._listening()
        read = partial(read_end, settings.reward)
        if settings.listen is not None:
            with listener.offering(session, fields_of(task), read) as offered:
                with session.paused():
                    await listener.taken(offered)
                return await offered.end
        with listener.serving(session, read) as served:
            try:
                end = await run_program(
                    settings.command_of(task),
                    variables=environment_of(os.environ, settings.env, served.base_url),
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
        if served.end.done():
            return served.end.result()
        if settings.reward == POSTED:
            raise EnvironmentRefusal(
                "the agent's program posted no reward; post one to $OPENAI_BASE_URL/end, or set"
                " env_config.kwargs.agent.reward"
            )
        rewards = printed(end) if settings.reward == PRINTED else {}
        reward = float(not end.code) if settings.reward == EXIT else rewards.pop("", 0.0)
        return StepResult(Observation(end.stdout.strip()), reward, done=True, rewards=rewards)

    async def _listening(self) -> AgentListener:
        """Return the listener of these settings; instances share it."""
        listeners, address = type(self)._listeners, self._settings.listen
        if address not in listeners:
            listeners[address] = AgentListener(address, self._settings.tokens())
        listener = listeners[address]
        try:
            await listener.start()
        except OSError as error:
            key, words = "env_config.kwargs.agent.listen", error.strerror
            raise EnvironmentUnavailable(f"{key}={':'.join(map(str, address or ()))}: {words}") from error
        return listener

    async def close(self) -> None:
        """The program ends with `run`."""

    @classmethod
    async def close_shared(cls) -> None:
        """Stop listening, unless there may be another rollout."""
        while cls._listeners and not cls.stays_open:
            await cls._listeners.popitem()[1].close()
