"""Classes and tools of the caller's own are modules in their folder, and are found by every later process."""

from pathlib import Path

from rl_agent.config.overrides.user_class import is_module_in
from rl_agent.config.plan import Config
from rl_agent.config.sections.base import absolute
from rl_agent.config.sections.env import EnvConfig
from rl_agent.errors import ConfigError
from rl_agent.pool.settings import with_callers_policy

AGENT = "rl_agent.env.agent.environment:AgentEnvironment"


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
    config = _with_agents(_with_default_kind(config), folder)
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
    kinds, kind = _with_kind(config.kinds, "env_config.default_env", config.default_env)
    return config.model_copy(update={"kinds": kinds, "default_env": kind})


def _with_agents(config: EnvConfig, folder: Path) -> EnvConfig:
    """Let agents' programs run in the folder, and make kinds of the functions that score them."""
    kinds, kwargs = config.kinds, dict(config.kwargs)
    for kind, dotted in config.kinds.items():
        if dotted == AGENT and kind in kwargs:
            settings = {"cwd": str(folder)} | kwargs[kind]
            for key in ("cwd", "token_file"):
                if settings.get(key) is not None:
                    settings[key] = str(absolute(folder / Path(str(settings[key])).expanduser()))
            if ":" in str(settings.get("reward", "")):
                key = f"env_config.kwargs.{kind}.reward"
                kinds, settings["reward"] = _with_kind(kinds, key, settings["reward"])
            kwargs[kind] = settings
    return config.model_copy(update={"kinds": kinds, "kwargs": kwargs})


def _with_kind(kinds: dict[str, str], key: str, dotted: str) -> tuple[dict[str, str], str]:
    """Return the kinds with the one that FILE.py:NAME or package.module:NAME makes, and its name.

    A `dotted` without a colon is the name of a kind already.
    """
    kind = dotted.partition(":")[2]
    if not kind:
        return kinds, dotted
    if kinds.get(kind, dotted) != dotted:
        raise ConfigError(f"{key}={dotted}: env_config.kinds has another {kind}; give yours another name")
    return {**kinds, kind: dotted}, kind
