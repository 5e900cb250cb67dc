"""Decides whether wandb records online, offline or not at all."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rl_agent.config.plan import WandbConfig

NOT_INSTALLED = "wandb is not installed; pip install 'rl-agent[wandb]' brings it"


@dataclass(frozen=True, slots=True)
class WandbMode:
    """The mode of wandb, and the reason for it."""

    mode: str
    reason: str
    key: str | None = None
    lacks_key: bool = False
    """True if it is offline only because there is no key."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that set the mode."""
        return {"WANDB_MODE": self.mode, **({"WANDB_API_KEY": self.key} if self.key else {})}


def wandb_mode(config: WandbConfig, environ: Mapping[str, str]) -> WandbMode:
    """Choose `wandb.mode`, else WANDB_MODE, else online if there is a key or a login, else offline.

    Where wandb is not installed nothing is recorded.
    """
    if find_spec("wandb") is None:
        return WandbMode("disabled", NOT_INSTALLED)
    key = environ.get(config.wandb_key_env_var) or environ.get("WANDB_API_KEY")
    if config.mode is not None:
        return WandbMode(config.mode, "wandb.mode", key)
    if environ.get("WANDB_MODE"):
        return WandbMode(environ["WANDB_MODE"], "WANDB_MODE", key)
    if key:
        return WandbMode("online", "there is a key", key)
    netrc = Path(environ.get("NETRC") or Path(environ.get("HOME", "/")) / ".netrc")
    if netrc.is_file() and "wandb" in netrc.read_text(encoding="utf-8", errors="replace"):
        return WandbMode("online", f"logged in through {netrc}")
    return WandbMode("offline", f"{config.wandb_key_env_var} is not set", lacks_key=True)
