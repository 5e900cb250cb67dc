"""Begins a few episodes to find, before anything is started, what would fail for every task.

    a few tasks of each kind of environment ─► make it ─► reset ─► the tokens of the first prompt ─► close
                                                            and in a dry run an episode with a scripted answer

An environment that fails for all of them, or whose first prompts leave no room for a response, ends the plan
with the reason. One that takes long is left to the rollout, which has a deadline for it. Each lives where it
would in the rollout: one that blocks or ends its process does that in a worker, not here.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rl_agent.config.plan import Config
from rl_agent.env.protocol import Environment
from rl_agent.env.remote.environments import Environments
from rl_agent.env.values import checked_observation, checked_result, raised
from rl_agent.errors import ConfigError, EnvironmentFailure, HarnessError
from rl_agent.plan.first_prompt import FirstPrompt, FirstPrompts, check_room
from rl_agent.plan.hub import FoundModel
from rl_agent.system.terminal import one_line
from rl_agent.system.worker_threads import WorkerThreads
from rl_agent.types import Task

TRIED = 4
"""Tasks of each kind that are begun, from the whole of the task files."""
LIMIT_S = 10.0
"""The time for each kind; a browser or a remote environment may take longer, and then nothing is concluded.
"""
PLAY_LIMIT_S = 60.0
"""The same in a dry run, which plays an episode of each kind."""
CLOSE_LIMIT_S = 2.0
ANSWER = "0"
"""Every response of the episode that a dry run plays; any reward for it will do."""
_MESSAGE = 300


def check_first_turns(
    config: Config, tasks: Sequence[Task], model: FoundModel, *, plays: bool = False, no_images: str = ""
) -> tuple[str, ...]:
    """Return notes on what could not be tried. Raises ConfigError for what would fail for every task.

    With `plays` a whole episode belongs to the trial. `no_images` says why none may be shown; empty: any may.
    """
    if not tasks or config.env_config.servers:  # servers of environments are asked by `checks`
        return ()
    prompts = None if model.folder is None else FirstPrompts(config, model)
    with _stdout_to_stderr():
        first_prompts, notes = asyncio.run(_begin_all(config, tasks, prompts, plays, no_images))
    check_room(first_prompts, config.engine.max_model_len)
    return notes


async def _begin_all(
    config: Config, tasks: Sequence[Task], prompts: FirstPrompts | None, plays: bool, no_images: str
) -> tuple[list[FirstPrompt], tuple[str, ...]]:
    asyncio.get_running_loop().set_default_executor(WorkerThreads(TRIED, name="first turn"))
    first_prompts: list[FirstPrompt] = []
    notes = []
    async with Environments(config.env_config) as environments:
        trial = _Trial(environments, config, prompts, plays, no_images)
        limit_s = PLAY_LIMIT_S if plays else LIMIT_S
        for kind in sorted({task.env for task in tasks}):
            if environments.classes.asks(kind):
                notes.append(f"env_config.kinds.{kind}: its program is not started without a model")
                continue
            try:
                async with asyncio.timeout(limit_s):
                    first_prompts += await trial.begin_some(
                        kind, [task for task in tasks if task.env == kind]
                    )
            except TimeoutError:
                notes.append(
                    f"env_config.kinds.{kind}: no episode {'was played' if plays else 'began'} within"
                    f" {limit_s:g} s; whether one can is seen in the rollout"
                )
    return first_prompts, tuple(notes)


@dataclass(frozen=True, slots=True)
class _Trial:
    environments: Environments
    config: Config
    prompts: FirstPrompts | None
    plays: bool
    no_images: str

    async def begin_some(self, kind: str, tasks: Sequence[Task]) -> list[FirstPrompt]:
        """Begin a few tasks of one kind; returns the prompts that were measured."""
        begun: list[FirstPrompt | None] = []
        problem = ""
        for task in _spread(tasks):
            try:
                begun.append(await self._begin(task, plays=self.plays and not begun))
            except (HarnessError, TimeoutError) as error:
                if isinstance(error, TimeoutError | ConfigError):
                    raise
                problem = problem or f"task {task.task_id}: {one_line(str(error))}"
            except Exception as error:  # the environment's own code
                problem = problem or f"task {task.task_id}: {one_line(raised(error))}"
        if not begun:
            tried, verb = len(_spread(tasks)), "be played" if self.plays else "begin"
            raise ConfigError(
                f"env_config.kinds.{kind}: no episode can {verb} ({tried} of {len(tasks)} tasks tried);"
                f" {problem[:_MESSAGE]}"
            )
        return [prompt for prompt in begun if prompt is not None]

    async def _begin(self, task: Task, *, plays: bool) -> FirstPrompt | None:
        environment = self.environments.create(task.env)
        try:
            observation = checked_observation(await environment.reset(task, 0), "reset")
            if observation.images and self.no_images:
                raise ConfigError(self.no_images)
            prompt = None
            if self.prompts is not None:
                has_tools = self.config.policy_config.has_tool_calls
                tools = await self.environments.classes.tools_of(task) if has_tools else ()
                prompt = await self.prompts.measure(task, observation, tools)
            if plays:
                await self._play(environment, task)
            return prompt
        finally:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_LIMIT_S):
                    await environment.close()

    async def _play(self, environment: Environment, task: Task) -> None:
        """Answer until the episode is done, or has as many steps as it may have in both splits."""
        env_config = self.config.env_config
        limits = (env_config.train_difficulty_max_steps, env_config.test_difficulty_max_steps)
        for number in range(1, min(limit.get(task.difficulty, 1) for limit in limits) + 1):
            try:
                result = checked_result(await environment.step(ANSWER))
            except (TimeoutError, ConfigError):
                raise
            except Exception as error:
                reason = str(error) if isinstance(error, HarnessError) else raised(error)
                raise EnvironmentFailure(f"step {number} failed: {reason}") from error
            if result.done or result.truncated:
                return


def _spread(tasks: Sequence[Task]) -> list[Task]:
    """Return some of the tasks: the first, the last, and some between them."""
    last = len(tasks) - 1
    return [tasks[index] for index in sorted({last * part // max(TRIED - 1, 1) for part in range(TRIED)})]


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """An environment may print, and bash reads the plan's path from stdout."""
    saved = os.dup(1)
    os.dup2(2, 1)  # what its processes print
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
