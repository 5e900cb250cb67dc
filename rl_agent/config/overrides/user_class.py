"""Loads a class that the configuration names as `package.module:Class`."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from rl_agent.errors import ConfigError, first_line
from rl_agent.system.extras import missing_library


def load_class(key: str, dotted: str, folders: Iterable[Path]) -> Any:
    """Import what `dotted` names; its module is looked for in `folders` first. Raises ConfigError.

    What else lies in the folders is found last, so that no file there stands in for a library. `key` is what
    the user wrote, `env_config.kinds.game=games:Game`, and begins each message.
    """
    module_name, colon, class_name = dotted.partition(":")
    if not (module_name and colon and class_name):
        raise ConfigError(f"{key}: not of the form package.module:Class")
    searched = [str(folder) for folder in folders]
    sys.path += [folder for folder in searched if folder not in sys.path]
    try:
        _import_from(searched, module_name.partition(".")[0])
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise ConfigError(f"{key}: cannot import {module_name}: {one_line(error)}") from error
    user_class = getattr(module, class_name, None)
    if user_class is None:
        raise ConfigError(f"{key}: {module_name} has no {class_name}")
    return user_class


def is_module_in(folder: Path, dotted: str) -> bool:
    """Return whether the module of `package.module:Class` lies in a folder."""
    package = dotted.partition(":")[0].partition(".")[0]
    return package not in ("", "rl_agent") and PathFinder.find_spec(package, [str(folder)]) is not None


def one_line(error: BaseException) -> str:
    """Return an error's type and the first line of what it says; of a missing library, what installs it."""
    if isinstance(error, ModuleNotFoundError) and (problem := missing_library(error)):
        return problem
    return first_line(error)


def _import_from(folders: Sequence[str], package: str) -> None:
    """Import the package, or the module without one, if it lies in one of the folders."""
    spec = None if package in sys.modules else PathFinder.find_spec(package, folders)
    if spec is None or spec.loader is None:
        return
    module = sys.modules[package] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[package]
        raise
