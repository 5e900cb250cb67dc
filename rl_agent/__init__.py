"""An RL harness for LLM and VLM agents: rollout, update, both; see README.md.

From Python, `collect` runs tasks against an engine: docs/how-to/use-from-python.md.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_agent.env.protocol import Environment
    from rl_agent.errors import HarnessError
    from rl_agent.library.collect import Episodes, collect
    from rl_agent.library.publish import WeightPublisher
    from rl_agent.types import Observation, StepResult, Task, Trajectory

_MODULES = {
    "Environment": "env.protocol",
    "Episodes": "library.collect",
    "HarnessError": "errors",
    "Observation": "types",
    "StepResult": "types",
    "Task": "types",
    "Trajectory": "types",
    "WeightPublisher": "library.publish",
    "collect": "library.collect",
}
__all__ = [
    "Environment",
    "Episodes",
    "HarnessError",
    "Observation",
    "StepResult",
    "Task",
    "Trajectory",
    "WeightPublisher",
    "collect",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for: a verb that needs none of it starts without."""
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
