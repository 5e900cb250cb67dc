"""Finds out which model a run serves, and which weight version a server holds.

`model.pt` under the log path is a symlink to `checkpoints/version-NNNNNN`; without it the base model is
version 0. A server is started on the resolved folder, so the root it reports names its version; one that was
started on the link is judged by when it was started.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from rl_agent.config import Config
from rl_agent.paths import RunPaths

OLDER = -1
"""A weight version before the present one, nobody knows which."""

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
    return (_version_of_folder(target, paths) or 0) if target.exists() else 0


def version_of_root(
    root: str, config: Config, wanted: ResolvedModel, started_at: float | None = None
) -> int | None:
    """Return the weight version of a server that says it loaded `root`; None if it is no model of this run.

    A server may have been started by hand on `model.pt` itself, whose name does not say which version it
    was then. If it started (seconds since the epoch, where known) before the link was last switched, it
    holds an `OLDER` one.
    """
    if root in (wanted.path, config.model.base_model):
        return wanted.weight_version if root == wanted.path else 0
    path = Path(root).resolve()
    version = _version_of_folder(path, config.paths)
    if version is None and str(path) == wanted.path:
        version = wanted.weight_version  # a model that a user put at `model.pt`
    if version is None or root == str(path) or _is_newer(started_at, config.paths.model_link):
        return version
    return OLDER


def _version_of_folder(folder: Path, paths: RunPaths) -> int | None:
    match = _VERSION_DIR.match(folder.name)
    return int(match[1]) if match and folder.parent == paths.checkpoints.resolve() else None


def _is_newer(started_at: float | None, link: Path) -> bool:
    """Return whether a server started after the link was switched; taken to be so where nobody knows."""
    try:
        return started_at is None or started_at > link.lstat().st_mtime
    except FileNotFoundError:  # rolled back to the base model meanwhile
        return False
