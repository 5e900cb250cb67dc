"""Reads the settings of a provider: the KEY=VALUE words of `pool scale`, over those of a YAML file."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from rl_agent.config.overrides.keys import did_you_mean
from rl_agent.errors import ConfigError, UsageError, in_one_line
from rl_agent.system.terminal import one_line


class ProviderSettings(BaseModel):
    """The settings of every provider; the verb fills them in."""

    model_config = ConfigDict(extra="forbid")
    manager: str
    """The manager's address as its engines reach it; the verb changes it when the manager moves."""
    fleet: str
    """Begins the name of each machine of this reconciler: FLEET-NUMBER."""

    def programs(self) -> dict[str, str]:
        """Return the programs that this machine must have, by what names them."""
        return {}

    def check_programs(self) -> None:
        """Raise ConfigError for a program that this machine lacks."""
        for key, program in self.programs().items():
            if shutil.which(program) is None:
                raise ConfigError(
                    f"{key}: {program}: this machine has no such program; give the path of one, or install it"
                )


Settings = TypeVar("Settings", bound=ProviderSettings)
OF_THE_VERB = frozenset(ProviderSettings.model_fields)


def read_settings(model: type[Settings], file: Path | None, words: Sequence[str], **own: str) -> Settings:
    """Return the settings of a provider. Raises UsageError, or ConfigError for the file or a value."""
    settings = {**_of_file(file), **_of_words(words)}
    if taken := sorted(OF_THE_VERB & settings.keys()):
        raise UsageError(f"{taken[0]}: is an option of `pool scale`, not a setting of its provider")
    try:
        return model.model_validate({**settings, **own})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        keys = sorted(model.model_fields.keys() - OF_THE_VERB)
        raise ConfigError(f"{one_line(key)}: {_plain(first, keys)}") from error


def _plain(problem: Any, keys: Sequence[str]) -> str:
    """Say in plain words what is wrong with a setting, and what would be right."""
    names = f"the provider's settings are {', '.join(keys)}"
    if problem["type"] == "extra_forbidden":
        key = str(problem["loc"][-1])
        is_inner = len(problem["loc"]) > 1
        return f"there is no such setting{did_you_mean(key, keys)}" + ("" if is_inner else f"; {names}")
    if problem["type"] == "missing":
        return f"is missing; {names}"
    return str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "expected")


def _of_words(words: Sequence[str]) -> dict[str, Any]:
    pairs = [word.partition("=") for word in words]
    for key, sign, _ in pairs:
        if not sign or not key:
            raise UsageError(f"{key!r}: expected KEY=VALUE, a setting of the provider")
    return {key: value for key, _, value in pairs}


def _of_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"--provider-file {path} cannot be read: {in_one_line(error)}") from error
    if not isinstance(settings, Mapping):
        raise ConfigError(f"--provider-file {path}: expected KEY: VALUE lines, the provider's settings")
    return dict(settings)
