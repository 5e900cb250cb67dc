"""Which model a run serves, and which weight version a server holds.

`model.pt` under the log path is a symlink to `checkpoints/version-NNNNNN`; without it the base model is
version 0. A server is started on the resolved folder, so the root it reports names its version.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from rl_agent.config import Config
from rl_agent.paths import RunPaths

_VERSION_DIR = re.compile(r"^version-(\d{6})$")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The model to serve: a folder, or a hub name where nothing was trained yet."""

    path: str
    weight_version: int


def resolve_model(config: Config) -> ResolvedModel:
    """The published model if there is one, else the base model."""
    link = config.paths.model_link
    if link.exists():
        return ResolvedModel(str(link.resolve()), published_version(config.paths))
    return ResolvedModel(config.model.base_model, 0)


def published_version(paths: RunPaths) -> int:
    """Weight version that `model.pt` names; 0 if nothing was published."""
    target = paths.model_link.resolve()
    match = _VERSION_DIR.match(target.name) if target.exists() else None
    return int(match[1]) if match and target.parent == paths.checkpoints.resolve() else 0


def version_of_root(root: str, config: Config) -> int | None:
    """Weight version of a server that says it loaded `root`; None if it is no model of this run."""
    wanted = resolve_model(config)
    if root in (wanted.path, config.model.base_model):
        return wanted.weight_version if root == wanted.path else 0
    path = Path(root).resolve()
    match = _VERSION_DIR.match(path.name)
    if match and path.parent == config.paths.checkpoints.resolve():
        return int(match[1])
    return None
