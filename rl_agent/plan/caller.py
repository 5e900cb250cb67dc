"""Environments of the caller's own are modules in their folder, and are found by every later process."""

from importlib.machinery import PathFinder
from pathlib import Path

from rl_agent.config import Config


def with_callers_modules(config: Config, folder: Path) -> Config:
    """Add the caller's folder to `env_config.module_folders` if a module of `env_config.kinds` lies in it."""
    env = config.env_config
    packages = {dotted.partition(":")[0].partition(".")[0] for dotted in env.kinds.values()} - {
        "rl_agent",
        "",
    }
    if not any(PathFinder.find_spec(package, [str(folder)]) for package in packages):
        return config
    folders = tuple(dict.fromkeys([*env.module_folders, folder]))
    return config.model_copy(update={"env_config": env.model_copy(update={"module_folders": folders})})
