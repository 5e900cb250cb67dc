"""Finds the placement policy that `pool.policy` names: one of the three, or a class of the user's.

The class is tried on sample engines before anything starts, so that a wrong one is a line of the plan.
"""

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rl_agent.config.overrides.user_class import load_class, one_line
from rl_agent.errors import ConfigError
from rl_agent.pool.scheduler.policies import (
    BUILT_IN,
    EngineView,
    PolicyFault,
    PolicyMaker,
    RequestView,
    looks_at_requests,
    number_from,
)

_NEW = EngineView("a" * 32, "http://127.0.0.1:8000", "", 0.0, 64, 0, 0.0, 0, 0.0, 1.0, 0.0, 0, 0)
_BUSY = EngineView("b" * 32, "run/node-1", "spot", 2.66, 64, 64, 9000.0, 3, 0.9, 900.0, 40.0, 7, 512)
_ALONE = RequestView("openai", "", "", (1, 2, 3), 0, 16, 16.0, 0, 0, True, "")
_SIBLING = RequestView("run", "task-1", "task-1/0", (1, 2, 3), 8, 512, 300.0, 7, 1, False, "b" * 32)


def find_policy(key: str, name: str, folders: Iterable[Path]) -> PolicyMaker:
    """Return what makes the policy. Raises ConfigError, which begins with `key=name`."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    key = f"{key}={name}"
    if ":" not in name:
        raise ConfigError(
            f"{key}: there are {', '.join(BUILT_IN)}, and classes of your own, package.module:Class"
        )
    policy_class = load_class(key, name, folders)
    if problem := _problem_with(policy_class):
        raise ConfigError(f"{key}: {problem}")
    return policy_class  # type: ignore[no-any-return]


def _problem_with(policy_class: Any) -> str:
    """Return why this cannot be a placement policy; empty if it can."""
    if not inspect.isclass(policy_class):
        return "is not a class"
    try:
        policy = policy_class()
    except (Exception, SystemExit) as error:
        return f"cannot be made without arguments: {one_line(error)}"
    method = getattr(policy, "score", None)
    if not callable(method) or inspect.iscoroutinefunction(method):
        return "lacks def score(self, engine)"
    try:
        with_request = looks_at_requests(policy)
        for engine in (_NEW, _BUSY):
            for request in (_ALONE, _SIBLING):
                number_from(method, *((engine, request) if with_request else (engine,)))
                if (cost_of := getattr(policy, "response_cost", None)) is not None:
                    number_from(cost_of, engine, request)
    except (TypeError, ValueError) as error:
        return str(error)
    except PolicyFault as fault:
        return f"{fault}, for the sample {engine}"
    return ""
