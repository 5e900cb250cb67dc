"""Begins a few episodes to find, before anything is started, what would fail for every task.

    a few tasks of each kind of environment ─► make it ─► reset ─► the tokens of the first prompt ─► close

An environment that fails for all of them, or whose first prompts leave no room for a response, ends the plan
with the reason. One that takes long is left to the rollout, which has a deadline for it. Each lives where it
would in the rollout: one that blocks or ends its process does that in a worker, not here.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from rl_agent.agent.chat import ChatTokenizer
from rl_agent.config import Config
from rl_agent.env.remote.environments import Environments
from rl_agent.errors import ConfigError, HarnessError
from rl_agent.plan.hub import FoundModel
from rl_agent.terminal import one_line
from rl_agent.types import Observation, Task
from rl_agent.worker_threads import WorkerThreads

TRIED = 4
"""Tasks of each kind that are begun, from the whole of the task files."""
LIMIT_S = 10.0
"""For each kind; a browser or a remote environment may take longer, and then nothing is concluded."""
CLOSE_LIMIT_S = 2.0
_MESSAGE = 300


def check_first_turns(config: Config, tasks: Sequence[Task], model: FoundModel) -> tuple[str, ...]:
    """Return notes on what could not be tried. Raises ConfigError for what would fail for every task."""
    if not tasks or config.env_config.servers:  # servers of environments are asked by `checks`
        return ()
    with _stdout_to_stderr():
        observed, notes = asyncio.run(_observe(config, tasks))
    texts = {task_id: found.text for task_id, found in observed.items() if not found.images}
    if len(texts) < len(observed) or not texts:  # only the server knows how many tokens an image has
        return notes
    return (*notes, *_check_prompts(config, texts, model))


async def _observe(config: Config, tasks: Sequence[Task]) -> tuple[dict[str, Observation], tuple[str, ...]]:
    asyncio.get_running_loop().set_default_executor(WorkerThreads(TRIED, name="first turn"))
    observed: dict[str, Observation] = {}
    notes = []
    async with Environments(config.env_config) as environments:
        for kind in sorted({task.env for task in tasks}):
            try:
                async with asyncio.timeout(LIMIT_S):
                    observed |= await _begin_some(
                        environments, kind, [task for task in tasks if task.env == kind]
                    )
            except TimeoutError:
                notes.append(
                    f"env_config.kinds.{kind}: no episode began within {LIMIT_S:g} s; whether one can is seen"
                    " in the rollout"
                )
    return observed, tuple(notes)


async def _begin_some(environments: Environments, kind: str, tasks: Sequence[Task]) -> dict[str, Observation]:
    observed: dict[str, Observation] = {}
    problem = ""
    for task in _spread(tasks):
        try:
            observed[task.task_id] = await _begin(environments, task)
        except (HarnessError, TimeoutError) as error:
            if isinstance(error, TimeoutError | ConfigError):
                raise
            problem = problem or f"task {task.task_id}: {one_line(str(error))}"
        except Exception as error:  # the environment's own code
            problem = problem or f"task {task.task_id}: {type(error).__name__}: {one_line(str(error))}"
    if not observed:
        tried = len(_spread(tasks))
        raise ConfigError(
            f"env_config.kinds.{kind}: no episode can begin ({tried} of {len(tasks)} tasks tried);"
            f" {problem[:_MESSAGE]}"
        )
    return observed


async def _begin(environments: Environments, task: Task) -> Observation:
    environment = environments.create(task.env)
    try:
        observation = await environment.reset(task, 0)
    finally:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await environment.close()
    if not isinstance(observation, Observation):
        raise TypeError(f"reset returned {type(observation).__name__}, not an Observation")
    return observation


def _spread(tasks: Sequence[Task]) -> list[Task]:
    """Return some of the tasks: the first, the last, and some between them."""
    last = len(tasks) - 1
    return [tasks[index] for index in sorted({last * part // max(TRIED - 1, 1) for part in range(TRIED)})]


def _check_prompts(config: Config, prompts: Mapping[str, str], model: FoundModel) -> tuple[str, ...]:
    """Refuse a context in which not one of these prompts leaves room for a response."""
    limit = config.engine.max_model_len
    if model.folder is None:
        return ()
    try:
        chat = ChatTokenizer.load(str(model.folder), config.model.chat_template_kwargs)
    except ConfigError:
        raise
    except Exception as error:  # of the library, for a file that is no tokenizer
        return (f"{model.folder}: its tokenizer cannot be read: {one_line(str(error))[:_MESSAGE]}",)
    system = config.policy_config.system_prompt
    sizes = {task_id: len(chat.start(system, Observation(text))) for task_id, text in prompts.items()}
    task_id, size = min(sizes.items(), key=lambda item: item[1])
    if size < limit:
        return ()
    raise ConfigError(
        f"engine.max_model_len={limit}: the first prompt of task {task_id} has {size} tokens and leaves no"
        f" room for a response, and the other {len(sizes) - 1} tasks that were tried have no shorter ones"
    )


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
