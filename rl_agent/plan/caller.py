"""Classes and tools of the caller's own are modules in their folder, and are found by every later process."""

from pathlib import Path

from rl_agent.config.overrides.user_class import is_module_in
from rl_agent.config.plan import Config
from rl_agent.config.sections.env import EnvConfig
from rl_agent.pool.settings import with_callers_policy


def with_callers_modules(config: Config, folder: Path) -> Config:
    """Add the folder to `module_folders`, of environments and of the pool, if a module is there."""
    changes = {
        "env_config": with_callers_kinds(config.env_config, folder),
        "pool": with_callers_policy(config.pool, folder),
    }
    return config.model_copy(update=changes)


def with_callers_kinds(config: EnvConfig, folder: Path) -> EnvConfig:
    """Add the folder to `module_folders` if a class of `kinds` or a function of `tools` is there."""
    functions = config.kwargs.get("tools", {}).get("functions")
    named = (*config.kinds.values(), *(functions if isinstance(functions, list) else ()))
    if not any(is_module_in(folder, str(dotted)) for dotted in named):
        return config
    folders = tuple(dict.fromkeys([*config.module_folders, folder]))
    return config.model_copy(update={"module_folders": folders})
