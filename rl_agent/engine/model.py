"""Finds out which model a run serves, and which weight version a server holds.

`model.pt` under the log path is a symlink to `checkpoints/version-NNNNNN`; before the first update there is
none, and the base model is version 0. A copy may lose the link (object stores, zip, rsync without -l) or make
a folder of it (cp -L), so `checkpoints/model_link.json` names the version, too. A server is started on the
resolved folder, so the root it reports names its version; one that was started on the link is judged by when
it was started.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from rl_agent.config.plan import Config, Plan
from rl_agent.errors import ConfigError
from rl_agent.paths import RunPaths
from rl_agent.system.files import read_object, write_whole

OLDER = -1
"""A weight version before the present one, nobody knows which."""

SERVED = "served.json"
"""Name of the file in a version's folder that says that an engine was ready on it."""

_VERSION_DIR = re.compile(r"^version-(\d{6})$")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The model to serve: a folder, or a hub name where nothing was trained yet."""

    path: str
    weight_version: int


def resolve_model(config: Config) -> ResolvedModel:
    """Return the published model if there is one, else the base model.

    Raises ConfigError if `model.pt` is lost, for the base model is then not what was served.
    """
    check_link(config.paths)
    link = config.paths.model_link
    if link.exists():
        return ResolvedModel(str(link.resolve()), published_version(config.paths))
    return ResolvedModel(config.model.base_model, 0)


def publishes_adapter(plan: Plan) -> bool:
    """Return whether this command trains, and gives engines an adapter alone."""
    return plan.config.publishes_adapters and plan.command.rl_phase == "both"


def engines_model(plan: Plan) -> ResolvedModel:
    """Return the model that a pool's engines are started on: the newest one.

    Where adapters alone are published, it is the base model, whatever was reached: the trainer's first
    announcement gives the engines that.
    """
    if publishes_adapter(plan):
        return ResolvedModel(plan.config.model.base_model, 0)
    return resolve_model(plan.config)


def lost_link(paths: RunPaths) -> str:
    """Describe how `model.pt` was lost; empty if it leads to a model, or the base model is served."""
    version, link = (
        recorded_version(paths),
        paths.model_link,
    )  # the record first: it is written after the link
    if link.is_symlink():
        return "" if link.exists() else f"{link}: leads to {link.readlink()}, which is not there"
    if link.exists():
        return (
            f"{link}: is not a link to a model (a copy that follows links makes a folder of it); move it away"
        )
    return f"{link}: is gone, and led to {version}" if version else ""


def check_link(paths: RunPaths) -> None:
    """Raise ConfigError if `model.pt` is lost; a start says which versions are whole, see `check_served`."""
    if problem := lost_link(paths):
        raise ConfigError(f"{problem}; restore a version with `rollback --to N`")


def recorded_version(paths: RunPaths) -> str | None:
    """Return the name of the version folder that `model.pt` was given last; None for the base model."""
    name = read_object(paths.model_record).get("version")
    return name if isinstance(name, str) else None


def record_version(paths: RunPaths, name: str | None) -> None:
    """Record which version folder `model.pt` leads to, in a file that a copy keeps; None: the base model."""
    paths.checkpoints.mkdir(parents=True, exist_ok=True)
    write_whole(paths.model_record, json.dumps({"version": name}) + "\n")


def published_version(paths: RunPaths) -> int:
    """Weight version that `model.pt` names; 0 if nothing was published."""
    target = paths.model_link.resolve()
    return (_version_of_folder(target, paths) or 0) if target.exists() else 0


def version_of_root(
    root: str, config: Config, model: ResolvedModel, started_at: float | None = None
) -> int | None:
    """Return the weight version of a server that loaded `root`; None if that is not a model of this run.

    A server may have been started by hand on `model.pt` itself, whose name does not say which version it
    was then. If it started (seconds since the epoch, where known) before the link was last switched, it
    holds an `OLDER` one.
    """
    if root in (model.path, config.model.base_model):
        return model.weight_version if root == model.path else 0
    path = Path(root).resolve()
    version = _version_of_folder(path, config.paths)
    if version is None and str(path) == model.path:
        version = model.weight_version  # a model that a user put at `model.pt`
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
