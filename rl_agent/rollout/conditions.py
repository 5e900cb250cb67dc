"""Records what an iteration was begun with: all that decides how its episodes are made and judged.

    begin ─► runs/<run>/begun/<split>-iteration<N>.json          resume, another node ─► equal, or refused

Siblings of a group are compared with each other, so they must not differ in how they were made. A setting
either decides that (`deciding_values`) and holds for the iteration, or it may change at any time: time
limits, numbers of workers, addresses, all of `engine`, which is a node's own. Tasks are read from
the run's own copy, which does not change.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rl_agent.cluster.protocol.shared_config import shared_values
from rl_agent.config.plan import Config
from rl_agent.engine.model import ResolvedModel
from rl_agent.errors import ConfigError, StoreError, in_one_line
from rl_agent.judge.judge import PURPOSES, for_purpose
from rl_agent.paths import RunPaths
from rl_agent.system.files import write_whole
from rl_agent.types import Split

_BASE_MODEL = "model_config.base_model"
"""Decides as long as it is what is served; a streaming trainer may publish in mid-iteration."""
DECIDING = (
    "seed",
    "model_config.chat_template_kwargs",
    "policy_config",
    "context",
    "env_config.kinds",
    "env_config.default_env",
    "env_config.kwargs",
    "rollout.reward",
    "rollout.reward_weights",
    "trainer.kind",
)
"""Keys, and sections with all their keys, that decide in both splits."""
DECIDING_IN: dict[Split, tuple[str, ...]] = {
    "train": (
        "rollout.group_size",
        "env_config.train_tasks_rollout_size",
        "env_config.train_tasks_sampler",
        "env_config.difficulty_ratio",
        "env_config.train_difficulty_max_steps",
    ),
    "test": (
        "env_config.test_tasks_rollout_size",
        "env_config.test_tasks_repeat_times",
        "env_config.test_difficulty_max_steps",
    ),
}
_JUDGE = ("max_images", "rubric_reward", "verdict_prompt", "pick_prompt")
_BEGUN = TypeAdapter(dict[str, Any])
_OF_PURPOSE = ("model", "temperature", "max_tokens", "structured_output")


def deciding_values(config: Config, split: Split, model: ResolvedModel) -> dict[str, Any]:
    """Return the settings that an iteration of `split` is begun with, by their dotted names."""
    prefixes = tuple(f"{key}." for key in DECIDING + DECIDING_IN[split])
    values = {
        key: value
        for key, value in shared_values(config).items()
        if value != {} and f"{key}.".startswith(prefixes)
    }
    own, other = "policy_config.temperature", "policy_config.test_temperature"
    if split == "test":
        own, other = other, own
    values.pop(other)
    values[own] = config.policy_config.temperature_of(split)
    if model.path == config.model.base_model:
        values[_BASE_MODEL] = model.path
    if config.rollout.reward == "judge":
        judge = config.openai_config
        values |= {f"openai_config.{name}": _plain(getattr(judge, name)) for name in _JUDGE}
        for purpose in PURPOSES:
            settings = for_purpose(judge, purpose)
            values |= {f"openai_config.{purpose}.{name}": getattr(settings, name) for name in _OF_PURPOSE}
    return values


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def first_change(begun: dict[str, Any], now: dict[str, Any]) -> str:
    """Return `key=old, not new` of the first setting that differs; empty if none does."""
    keys = sorted(begun.keys() | now.keys(), key=lambda key: (key not in begun or key not in now, key))
    for key in keys:
        is_in_both = key in begun and key in now
        if begun.get(key) != now.get(key) and (is_in_both or key != _BASE_MODEL):
            return f"{key}={begun.get(key, 'unset')}, not {now.get(key, 'unset')}"
    return ""


def write(paths: RunPaths, run_id: str, split: Split, iteration: int, begun: dict[str, Any]) -> None:
    """Write down the settings that an iteration begins with."""
    path = paths.begun(run_id, split, iteration)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"settings": begun}, indent=1) + "\n")


def read(paths: RunPaths, run_id: str, split: Split, iteration: int) -> dict[str, Any] | None:
    """Read the settings that an iteration was begun with; None if nobody has begun it.

    Raises StoreError for a file that cannot be read.
    """
    path = paths.begun(run_id, split, iteration)
    try:
        settings: dict[str, Any] = _BEGUN.validate_json(path.read_bytes())["settings"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        reason = in_one_line(error)
        raise StoreError(f"{path}: what an iteration was begun with cannot be read: {reason}") from error
    return settings


def refusal(iteration: int, change: str) -> ConfigError:
    """Return why a resume cannot go on with what it has, and both ways out."""
    return ConfigError(
        f"--resume: iteration {iteration} was begun with {change}; put it back until that iteration is done,"
        " or start without --resume, which begins a new iteration"
    )
