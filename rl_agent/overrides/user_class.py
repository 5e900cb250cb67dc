"""Loads a class that the configuration names as `package.module:Class`."""

import importlib
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from rl_agent.errors import ConfigError


def load_class(key: str, dotted: str, folders: Iterable[Path]) -> Any:
    """Import what `dotted` names; its module is looked for in `folders` first. Raises ConfigError.

    `key` is what the user wrote, `env_config.kinds.game=games:Game`, and begins each message.
    """
    module_name, colon, class_name = dotted.partition(":")
    if not (module_name and colon and class_name):
        raise ConfigError(f"{key}: not of the form package.module:Class")
    _look_first_in(folders)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise ConfigError(f"{key}: cannot import {module_name}: {one_line(error)}") from error
    found = getattr(module, class_name, None)
    if found is None:
        raise ConfigError(f"{key}: {module_name} has no {class_name}")
    return found


def is_module_in(folder: Path, dotted: str) -> bool:
    """Return whether the module of `package.module:Class` lies in a folder."""
    package = dotted.partition(":")[0].partition(".")[0]
    return package not in ("", "rl_agent") and PathFinder.find_spec(package, [str(folder)]) is not None


def one_line(error: BaseException) -> str:
    """Return an error's type and the first line of what it says."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _look_first_in(folders: Iterable[Path]) -> None:
    """Put folders at the front of `sys.path`, as Python does with the folder in which it starts."""
    new = [str(folder) for folder in folders if str(folder) not in sys.path]
    sys.path[:0] = new
