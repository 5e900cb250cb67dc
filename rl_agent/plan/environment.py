"""The environment variables a run's processes share.

The data path is a read-only input as far as this project is concerned: the hub cache lives there if it is
there or can be made, everything that libraries write while running goes under the log path.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_agent.config.plan import Config
from rl_agent.monitor.wandb_mode import NOT_INSTALLED, wandb_mode
from rl_agent.plan import hub_cache as hub


@dataclass(frozen=True, slots=True)
class SharedEnvironment:
    """Variables to export, and what a person should know about them."""

    variables: dict[str, str]
    notes: tuple[str, ...]


def hub_cache(config: Config, environ: Mapping[str, str]) -> Path:
    """Folder with the `models--…` folders."""
    return hub.choose(config, environ).folder


def shared_environment(config: Config, environ: Mapping[str, str]) -> SharedEnvironment:
    """Return what `run.sh` exports before it starts anything; a variable the user set is left alone."""
    cache, wandb = hub.choose(config, environ), wandb_mode(config.wandb, environ)
    ours: dict[str, str] = {
        "HF_DATASETS_CACHE": str(config.log_path / "cache" / "datasets"),
        "HF_MODULES_CACHE": str(config.log_path / "cache" / "modules"),
        # setproctitle would otherwise overwrite the variables by which a run knows its own processes
        "SPT_NOENV": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **cache.variables,
    }
    notes = [cache.note] if cache.note else []
    if wandb.reason == NOT_INSTALLED:
        notes.append(wandb.reason)
    if wandb.lacks_key:
        notes.append(
            f"no wandb key ({config.wandb.wandb_key_env_var}): wandb records offline under"
            f" {config.log_path / 'wandb'}; upload with: wandb sync"
        )
    variables = {name: value for name, value in ours.items() if not environ.get(name)} | wandb.variables
    return SharedEnvironment(variables | _made_absolute(environ), tuple(notes))


def _made_absolute(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's folders that are named relative to where they stand: a run works elsewhere."""
    names = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "HF_TOKEN_PATH")
    folders = {name: Path(environ[name]).expanduser() for name in names if environ.get(name)}
    return {name: str(Path.cwd() / path) for name, path in folders.items() if not path.is_absolute()}
