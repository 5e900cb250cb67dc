"""Checks what an environment returned: values that can be shown to a model and written down."""

import re
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from rl_agent.errors import EnvironmentFailure, EnvironmentRefusal
from rl_agent.types import MAX_MESSAGE, Observation, StepResult, writable

_LIBRARIES = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OF_OTHERS = (*_LIBRARIES, str(Path(__file__).parents[1]), "<")
"""Beginnings of the names of files that are not the user's."""
MAX_REWARD = 1e18
"""Sums of rewards and their squares stay within the trainer's numbers of 32 bits and Python's."""
MAX_REWARDS = 20
"""The most named rewards of a step: each is a metric."""
_REWARD_NAME = re.compile(r"[A-Za-z_][\w-]{0,59}", re.ASCII)


def checked_observation(observation: object, call: str) -> Observation:
    """Return the observation, if it can be shown to a model and written down; else EnvironmentFailure.

    A value of another type is a bug that another attempt meets again: EnvironmentRefusal.
    """
    if not isinstance(observation, Observation):
        raise EnvironmentRefusal(f"{call} returned {type(observation).__name__}, not an Observation")
    try:
        observation.text.encode()
    except (AttributeError, UnicodeError) as error:
        raise environment_failure(f"{call} returned an observation that is not a text", error) from error
    try:
        images = tuple(str(path) for path in observation.images)
        "".join(images).encode()
    except (TypeError, UnicodeError) as error:
        what = f"{call} returned an observation with an image path that is not a text"
        raise environment_failure(what, error) from error
    return Observation(observation.text, images)


def checked_result(result: object) -> StepResult:
    """Return the result with plain values: a library's own number types cannot be written as JSON."""
    if not isinstance(result, StepResult):
        raise EnvironmentRefusal(f"step returned {type(result).__name__}, not a StepResult")
    names = list(result.rewards)
    if len(names) > MAX_REWARDS or not all(isinstance(n, str) and _REWARD_NAME.fullmatch(n) for n in names):
        raise EnvironmentRefusal(
            f"step returned rewards named {recordable(repr(names))}: at most {MAX_REWARDS} names of letters,"
            " digits, _ and - can be metrics"
        )
    return StepResult(
        checked_observation(result.observation, "step"),
        _checked_reward(result.reward),
        done=bool(result.done),
        truncated=bool(result.truncated),
        changed=bool(result.changed),
        invalid=bool(result.invalid),
        rewards={name: _checked_reward(value) for name, value in result.rewards.items()},
    )


def _checked_reward(value: object) -> float:
    try:
        reward = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise environment_failure("step returned a reward that is not a number", error) from error
    if not abs(reward) <= MAX_REWARD:
        raise EnvironmentFailure(f"step returned the reward {reward}, which is not a number to learn from")
    return reward


def environment_failure(what: str, error: BaseException) -> EnvironmentFailure:
    return EnvironmentFailure(f"{what}: {described(error)}")


def described(error: BaseException) -> str:
    """Return what may be recorded of an error: some hold a whole page, or half a character."""
    return recordable(raised(error))


def raised(error: BaseException) -> str:
    """Return an exception as one reads it: the innermost line of the user's own code, kind and message."""
    words = f"{type(error).__name__}: {error}".removesuffix(": ")
    return ": ".join([*_own_places(error)[-1:], words])


def _own_places(error: BaseException) -> list[str]:
    """Return FILE:LINE of the frames that are neither a library's nor this package's, outermost first."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return [f"{Path(file).name}:{line}" for file, line in frames if not file.startswith(_OF_OTHERS)]


def recordable(message: str) -> str:
    return writable(message[:MAX_MESSAGE])


M = TypeVar("M", bound=BaseModel)


def settings_from(model: type[M], kwargs: Mapping[str, Any]) -> M:
    """Return the settings of an environment. Raises ValueError naming the key that is wrong."""
    try:
        return model.model_validate(kwargs)
    except ValidationError as error:
        first = error.errors()[0]
        key, value = ".".join(map(str, first["loc"])), first["input"]
        if first["type"] == "extra_forbidden":
            raise ValueError(f"{key}: there is no such setting") from None
        words = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        shown = f"={value!r:.80}" if isinstance(value, str | int | float) else ""
        raise ValueError(f"{key}{shown}: {words}" if key else words) from None
