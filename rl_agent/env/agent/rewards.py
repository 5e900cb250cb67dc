"""The rewards that agents' programs give: the last line that they print, or the body of an end. Pure."""

import json
import math
from typing import Any

from rl_agent.env.agent.openai_wire import object_of
from rl_agent.env.agent.program import ProgramEnd, last_line
from rl_agent.env.agent.settings import EXIT, NONE, POSTED, PRINTED
from rl_agent.errors import EnvironmentRefusal
from rl_agent.types import Observation, StepResult

_END = ("reward", "completion")
_SHAPE = "a number or an object of numbers"


def printed(end: ProgramEnd) -> dict[str, float]:
    """Return the reward in the last line of a program's output: its number as that of "", or named ones."""
    line = last_line(end.stdout)
    try:
        return _rewards(json.loads(line))
    except (ValueError, RecursionError):
        raise EnvironmentRefusal(
            f"the agent's program did not print a reward: its last line is {line[:80]!r}, not {_SHAPE};"
            " print one, or set env_config.kwargs.agent.reward"
        ) from None


def read_end(source: str, body: bytes) -> StepResult:
    """Read the body with which a program ends its session, where the reward is of a `source`.

    Raises ValueError that names the field that is wrong.
    """
    given = object_of(body)
    completion = given.get("completion", "")
    if unknown := next((name for name in given if name not in _END), None):
        raise ValueError(f"{unknown}: an end has {' and '.join(_END)} at most")
    if not isinstance(completion, str):
        raise ValueError("completion: expected a text")
    if source in (PRINTED, EXIT) or (source != POSTED and "reward" in given):
        raise ValueError(f"reward: this run's is {source}; set env_config.kwargs.agent.reward={POSTED}")
    if source not in (POSTED, NONE) and "completion" not in given:
        raise ValueError(f"completion: {source} scores it; give the answer as a text")
    rewards = _rewards(given.get("reward")) if source == POSTED else {}
    return StepResult(Observation(completion), rewards.pop("", 0.0), done=True, rewards=rewards)


def _rewards(value: Any) -> dict[str, float]:
    try:
        named = value if isinstance(value, dict) else {"": value}
        rewards = {name: math.nan if isinstance(part, str) else float(part) for name, part in named.items()}
    except (TypeError, OverflowError):
        rewards = {"": math.nan}
    if not rewards or not all(map(math.isfinite, rewards.values())):
        raise ValueError(f"reward: expected {_SHAPE}")
    return rewards
