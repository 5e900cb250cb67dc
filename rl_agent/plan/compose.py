"""The configuration of a run: its words, the log path and the machine, composed and noted on."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rl_agent.config.overrides import keys
from rl_agent.config.overrides.compose import RUN, ComposedConfig, compose
from rl_agent.config.overrides.words import GROUP_KEYS, Kind, Override
from rl_agent.config.plan import Config
from rl_agent.plan import inert
from rl_agent.plan.caller import with_callers_modules
from rl_agent.plan.context import notes_on_loss

_MODEL_GROUP = GROUP_KEYS["model"]
_STREAMING = ("grpo", "grpo_cpu")
"""Options of the group `trainer` that stream."""


def compose_config(
    overrides: Sequence[Override], *, data_path: Path, log_path: Path, num_gpus: int
) -> ComposedConfig[Config]:
    """Compose and check. Raises `UsageError` for a word, `ConfigError` for a value that does not fit."""
    paths = [_path_override("data_path", data_path), _path_override("log_path", log_path)]
    implied = [*_model_group(overrides), *_of_streaming(overrides)]
    composed = compose(RUN, [*implied, *overrides, *paths], has_gpu=num_gpus > 0)
    config = with_callers_modules(composed.config, Path.cwd())
    without_effect = inert.notes(config, {word.name for word in overrides})
    return ComposedConfig(config, (*composed.notes, *without_effect, *notes_on_loss(config)))


def _path_override(key: str, path: Path) -> Override:
    flag = "--" + key.replace("_", "-")
    return Override(Kind.SET, key, str(path), f"{key}={path}", flag, key, is_literal=True)


def _model_group(overrides: Iterable[Override]) -> list[Override]:
    """Take the base model, template, ... of X along where `model_config.model_type=X` alone is given."""
    by_name = {override.name: override for override in overrides}
    chosen = by_name.get("model_config.model_type")
    if chosen is None or _MODEL_GROUP in by_name or chosen.raw not in keys.group_options("model"):
        return []
    word = f"{_MODEL_GROUP}={chosen.raw}"
    return [Override(Kind.SET, _MODEL_GROUP, chosen.raw, word, "default", _MODEL_GROUP)]


def _of_streaming(overrides: Iterable[Override]) -> list[Override]:
    """Take along what a streaming trainer needs where nothing else is chosen: a pool, its default model."""
    by_name = {override.name: override for override in overrides}
    chosen = by_name.get("trainer")
    if chosen is None or chosen.raw not in _STREAMING:
        return []
    groups = {"pool": "elastic"}
    if "model_config.model_type" not in by_name:
        groups[_MODEL_GROUP] = "qwen3-text"
    return [
        Override(Kind.SET, name, option, f"{name}={option}", "default", name)
        for name, option in groups.items()
        if name not in by_name
    ]
