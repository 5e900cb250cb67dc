"""The environment variables a run's processes share, and where its caches lie.

The data path is a read-only input as far as this project is concerned: the hub cache lives there if it is
there or can be made, everything that libraries write while running goes under the log path.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_agent.config import Config


@dataclass(frozen=True, slots=True)
class Environment:
    """Variables to export, and what a person should know about them."""

    variables: dict[str, str]
    notes: tuple[str, ...]


def hub_home(data_path: Path, environ: Mapping[str, str]) -> Path | None:
    """HF_HOME of a run: the user's, else `<data-path>/.cache/huggingface`; None: the library's default."""
    if environ.get("HF_HOME"):
        return Path(environ["HF_HOME"])
    home = data_path / ".cache" / "huggingface"
    nearest = home
    while not nearest.exists():
        nearest = nearest.parent
    is_usable = (home / "hub").is_dir() or os.access(nearest, os.W_OK | os.X_OK)
    return home if is_usable else None


def hub_cache(data_path: Path, environ: Mapping[str, str]) -> Path:
    """Folder with the `models--…` folders."""
    if environ.get("HF_HUB_CACHE"):
        return Path(environ["HF_HUB_CACHE"])
    return (hub_home(data_path, environ) or _default_home(environ)) / "hub"


def _default_home(environ: Mapping[str, str]) -> Path:
    cache = environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path(environ.get("HOME", "/")) / ".cache") / "huggingface"


def shared_environment(config: Config, environ: Mapping[str, str]) -> Environment:
    """What `run.sh` exports before it starts anything; a variable the user set is left alone."""
    notes: list[str] = []
    home = hub_home(config.data_path, environ)
    ours: dict[str, str] = {
        "HF_DATASETS_CACHE": str(config.log_path / "cache" / "datasets"),
        "HF_MODULES_CACHE": str(config.log_path / "cache" / "modules"),
        # setproctitle would otherwise overwrite the variables by which a run knows its own processes
        "SPT_NOENV": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if home is None:
        notes.append(
            f"{config.data_path} is not writable and holds no hub cache: the default HF_HOME is used"
        )
    elif not environ.get("HF_HOME"):
        ours["HF_HOME"] = str(home)
        login = _default_home(environ) / "token"
        if login.is_file():
            ours["HF_TOKEN_PATH"] = str(login)
    variables = {name: value for name, value in ours.items() if not environ.get(name)}
    variables |= _wandb(config, environ, notes)
    return Environment(variables, tuple(notes))


def _wandb(config: Config, environ: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    """Mode: `wandb.mode`, else WANDB_MODE, else online where there is a key and offline where not."""
    key = environ.get(config.wandb.wandb_key_env_var) or environ.get("WANDB_API_KEY")
    mode = config.wandb.mode or environ.get("WANDB_MODE")
    if not mode:
        netrc = Path(environ.get("NETRC") or Path(environ.get("HOME", "/")) / ".netrc")
        has_login = netrc.is_file() and "wandb" in netrc.read_text(encoding="utf-8", errors="replace")
        mode = "online" if key or has_login else "offline"
        if mode == "offline":
            notes.append(
                f"no wandb key ({config.wandb.wandb_key_env_var}): wandb records offline under"
                f" {config.log_path / 'wandb'}; upload with: wandb sync"
            )
    return {"WANDB_MODE": mode, **({"WANDB_API_KEY": key} if key else {})}
