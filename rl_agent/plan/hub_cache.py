"""Chooses the folder that models of the hub are read from and downloaded to.

    HF_HUB_CACHE, HF_HOME ─► the user's, whatever it is
    else DATA_PATH/.cache/huggingface     if it can be written, or holds the model
    else the library's own folder         if it can be written, or holds the model
    else LOG_PATH/cache/huggingface

A cache that holds the model and cannot be written is read offline: a newer revision could not be put there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rl_agent.config.plan import Config
from rl_agent.plan.disk import can_be_written
from rl_agent.plan.hub import cached_snapshot


@dataclass(frozen=True, slots=True)
class HubCache:
    folder: Path
    """The one with the `models--…` folders."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that make every library use it."""
    note: str | None = None


def choose(config: Config, environ: Mapping[str, str]) -> HubCache:
    if environ.get("HF_HUB_CACHE"):
        return HubCache(Path(environ["HF_HUB_CACHE"]))
    if environ.get("HF_HOME"):
        return HubCache(Path(environ["HF_HOME"]) / "hub")
    own, default = config.data_path / ".cache" / "huggingface", default_home(environ)
    if can_be_written(own):
        return HubCache(own / "hub", _home(own, environ))
    model = config.model.base_model
    if cached_snapshot(model, own / "hub") is not None:
        return HubCache(own / "hub", _read_only(own / "hub"))
    reason = f"{config.data_path} is not writable and does not hold {model}"
    if can_be_written(default):
        return HubCache(default / "hub", {}, f"{reason}: {default} is used")
    if cached_snapshot(model, default / "hub") is not None:
        return HubCache(default / "hub", _read_only(default / "hub"))
    home = config.log_path / "cache" / "huggingface"
    return HubCache(home / "hub", _home(home, environ), f"{reason}, {default} neither: {home} is used")


def default_home(environ: Mapping[str, str]) -> Path:
    """Return what the library takes for HF_HOME."""
    cache = environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path(environ.get("HOME", "/")) / ".cache") / "huggingface"


def _home(home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a home of its own; a login in the default one is still found."""
    login = default_home(environ) / "token"
    return {"HF_HOME": str(home)} | ({"HF_TOKEN_PATH": str(login)} if login.is_file() else {})


def _read_only(folder: Path) -> dict[str, str]:
    return {"HF_HUB_CACHE": str(folder), "HF_HUB_OFFLINE": "1"}
