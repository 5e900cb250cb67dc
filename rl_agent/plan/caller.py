"""Classes and tools of the caller's own are modules in their folder, and are found by every later process."""

from pathlib import Path

from rl_agent.config.overrides.user_class import is_module_in
from rl_agent.config.plan import Config
from rl_agent.config.sections.base import absolute
from rl_agent.config.sections.env import EnvConfig
from rl_agent.errors import ConfigError
from rl_agent.pool.settings import with_callers_policy


def with_callers_modules(config: Config, folder: Path) -> Config:
    """Add the folder to `module_folders`, of environments and of the pool, if a module is there."""
    changes = {
        "env_config": with_callers_kinds(config.env_config, folder),
        "pool": with_callers_policy(config.pool, folder),
    }
    return config.model_copy(update=changes)


def with_callers_kinds(config: EnvConfig, folder: Path) -> EnvConfig:
    """Make modules of the files that `kinds` and `default_env` name, and let all find those in the folder.

    The folder is added to `module_folders` if a class of `kinds` or a function of `tools` is there. Raises
    ConfigError.
    """
    config = _with_default_kind(config)
    kinds, of_files = dict(config.kinds), []
    for kind, dotted in config.kinds.items():
        file, _, name = dotted.partition(":")
        if file.endswith(".py"):
            path = absolute(folder / Path(file).expanduser())
            if not path.is_file():
                raise ConfigError(f"env_config.kinds.{kind}={dotted}: there is no file {path}")
            kinds[kind] = f"{path.stem}:{name}"
            of_files.append(path.parent)
    functions = config.kwargs.get("tools", {}).get("functions")
    named = (*kinds.values(), *(functions if isinstance(functions, list) else ()))
    folders = [*of_files, *config.module_folders]
    if any(is_module_in(folder, str(dotted)) for dotted in named):
        folders.append(folder)
    return config.model_copy(update={"kinds": kinds, "module_folders": tuple(dict.fromkeys(folders))})


def _with_default_kind(config: EnvConfig) -> EnvConfig:
    """Make a kind of the function or class that `default_env` names, under its own name."""
    dotted = config.default_env
    kind = dotted.partition(":")[2]
    if not kind:
        return config
    if kind in config.kinds:
        raise ConfigError(
            f"env_config.default_env={dotted}: env_config.kinds has another {kind}; give yours another name"
        )
    return config.model_copy(update={"kinds": {**config.kinds, kind: dotted}, "default_env": kind})
