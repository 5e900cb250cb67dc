"""Classes of the caller's own are modules in their folder, and are found by every later process."""

from pathlib import Path

from rl_agent.config import Config
from rl_agent.overrides.user_class import is_module_in
from rl_agent.pool.settings import with_callers_policy


def with_callers_modules(config: Config, folder: Path) -> Config:
    """Add the folder to `module_folders`, of environments and of the pool, if a module is there."""
    env = config.env_config
    if any(is_module_in(folder, dotted) for dotted in env.kinds.values()):
        folders = tuple(dict.fromkeys([*env.module_folders, folder]))
        env = env.model_copy(update={"module_folders": folders})
    return config.model_copy(update={"env_config": env, "pool": with_callers_policy(config.pool, folder)})
