"""A reward function as an environment of one turn: the task's prompt, one response, its reward.

    def score(prompt, completion, answer, **columns) -> float

A function names the parameters that it needs: `prompt`, `completion` and fields of the task's line. It
returns a number or a dict of named rewards. TRL's form names `completions` instead; it gets and returns lists
of one.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rl_agent.env.values import MAX_REWARD, recordable
from rl_agent.errors import EnvironmentRefusal
from rl_agent.types import Observation, StepResult, Task

_TRL_NAMES = {"prompt": "prompts", "completion": "completions"}


class RewardFunctionEnvironment:
    """Asks the task's prompt; the function rewards the first response, also where that is empty.

    A function runs in a thread, so that it may wait or compute; an `async` one runs on the event loop.
    """

    function: ClassVar[Callable[..., Any]]

    def __init__(self) -> None:
        self._task: Task | None = None

    @classmethod
    def check_task(cls, task: Task) -> None:
        arguments = cls._arguments(task, "")
        for name, parameter in inspect.signature(cls.function).parameters.items():
            is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if is_named and parameter.default is parameter.empty and name not in arguments:
                raise ValueError(f"no field {name}, which {_place(cls.function)} takes")

    async def reset(self, task: Task, seed: int) -> Observation:
        self._task = task
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        assert self._task is not None
        arguments, self._task = self._arguments(self._task, action), None
        if inspect.iscoroutinefunction(self.function):
            returned = await self.function(**arguments)
        else:
            returned = await asyncio.to_thread(self.function, **arguments)
        if _is_batched(self.function):
            if not isinstance(returned, list | tuple) or len(returned) != 1:
                raise self._refusal(returned, "a list of one reward for a list of one completion")
            (returned,) = returned
        if isinstance(returned, Mapping):
            rewards = {name: self._checked(value) for name, value in returned.items()}
            return StepResult(Observation(""), done=True, rewards=rewards)
        return StepResult(Observation(""), self._checked(returned), done=True)

    async def close(self) -> None:
        self._task = None

    @classmethod
    def _arguments(cls, task: Task, completion: str) -> dict[str, Any]:
        """Return what the function is called with: all that there is, or what its parameters name."""
        fields = task.extra | {"task_id": task.task_id, "difficulty": task.difficulty}
        fields |= {"prompt": task.prompt, "completion": completion}
        if task.answer is not None:
            fields["answer"] = task.answer
        if _is_batched(cls.function):
            fields = {_TRL_NAMES.get(name, name): [value] for name, value in fields.items()}
        parameters = inspect.signature(cls.function).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        return {name: value for name, value in fields.items() if takes_all or name in parameters}

    def _checked(self, value: Any) -> float:
        try:
            reward = math.nan if isinstance(value, str) else float(value)
        except (TypeError, ValueError, OverflowError):
            reward = math.nan
        if not abs(reward) <= MAX_REWARD:
            raise self._refusal(value, "a number to learn from")
        return reward

    def _refusal(self, returned: Any, right: str) -> EnvironmentRefusal:
        shown = " ".join(repr(returned).split())[:80]
        return EnvironmentRefusal(recordable(f"{_place(self.function)} returned {shown}, not {right}"))


def environment_of(function: Callable[..., Any]) -> type[RewardFunctionEnvironment]:
    """Return the environment of a reward function. Raises ValueError if no task could call it."""
    parameters = inspect.signature(function).parameters
    if not {"completion", "completions"} & parameters.keys():
        raise ValueError(
            f"{_place(function)} has neither a parameter `completion` nor `completions`;"
            f" write def {function.__name__}(prompt, completion, **columns)"
        )
    for name, parameter in parameters.items():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ValueError(
                f"{_place(function)} takes {name} by position only; parameters are given by name"
            )
    return type(function.__name__, (RewardFunctionEnvironment,), {"function": staticmethod(function)})


def _is_batched(function: Callable[..., Any]) -> bool:
    return "completions" in inspect.signature(function).parameters


def _place(function: Callable[..., Any]) -> str:
    """Return FILE:LINE and the name of a function."""
    code = inspect.unwrap(function).__code__
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}: {function.__name__}"
