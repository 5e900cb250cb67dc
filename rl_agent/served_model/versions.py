"""Manages the published models under a log path: which one is served, which was before, which are kept.

    checkpoints/version-000007/            what the engine serves (hard links into the training's checkpoint)
    checkpoints/version-000007/trainer/    the checkpoint itself: the optimizer's state, or LoRA's adapter
    checkpoints/version-000007/published.json
    checkpoints/version-000007/served.json      an engine was ready on it
    model.pt -> checkpoints/version-000007
    checkpoints/model_link.json          the version that it leads to, for a copy may lose the link

A version number is used once. `published.json` names the model that was served before, so that `rollback`
and `prune` follow the models that were really served, also after an earlier rollback; a version that the
served one does not descend from is never deleted. A link that a user put at `model.pt` is version 0: the
first publish keeps it as `checkpoints/version-000000`. Otherwise the base model is version 0, and a rollback
to it removes the link.
"""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rl_agent.engine.model import SERVED, check_link, record_version, recorded_version
from rl_agent.errors import ConfigError
from rl_agent.paths import RunPaths
from rl_agent.served_model.digest import FileDigest
from rl_agent.system.files import remove, replace_link, sync, write_whole

RECORD = "published.json"
TRAINER = "trainer"
RESTORE = "restore the published files, or serve another version with `rollback --to N`"
"""The remedy for a version whose file is damaged."""
_VERSION = re.compile(r"^version-(\d{6})(\.tmp)?$")


@dataclass(frozen=True, slots=True)
class Published:
    """The origin of a version, and the digests of its files."""

    weight_version: int
    previous: str | None
    """Name of the version folder that was served before; None for the base model."""
    run_id: str
    iteration: int
    learning_rate: float
    samples: int
    update_steps: int
    """Optimizer steps behind these weights, earlier iterations included where the optimizer was continued."""
    created_at: float
    """Seconds since the epoch."""
    ancestors: tuple[str, ...] = ()
    """Version folders that these weights descend from, `previous` included, as far as they were kept then."""
    files: dict[str, FileDigest] = field(default_factory=dict)
    """Files that an engine reads; empty for a version from before digests were recorded."""
    trainer_files: dict[str, FileDigest] = field(default_factory=dict)
    """Files below `trainer/` that LLaMA-Factory continues from; trainer=grpo keeps digests of its own."""
    trained_on: tuple[int, ...] = ()
    """Training iterations that its update read; empty where that was not recorded."""


_RECORD = TypeAdapter(Published)


def write_record(folder: Path, record: Published) -> None:
    """Write the record of a version folder."""
    write_whole(folder / RECORD, _RECORD.dump_json(record, indent=2).decode() + "\n")


def read_record(folder: Path) -> Published | None:
    """Read the record of a version folder; None for version 0 and for other folders."""
    try:
        return _RECORD.validate_json((folder / RECORD).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        raise ConfigError(f"{folder / RECORD}: is damaged: {error.errors()[0]['msg']}; {RESTORE}") from error


def served_folder(paths: RunPaths) -> Path | None:
    """Return the version folder that `model.pt` names; None if it names none."""
    link = paths.model_link
    target = link.parent / link.readlink() if link.is_symlink() else None
    # A link to a version of another log path is the user's own model, not one that was published here.
    is_ours = target is not None and target.parent.resolve() == paths.checkpoints.resolve()
    return paths.checkpoints / target.name if target and is_ours and _VERSION.match(target.name) else None


def served_record(paths: RunPaths) -> Published | None:
    """Return the record of the version that `model.pt` names; None if it names none or has no record."""
    folder = served_folder(paths)
    return None if folder is None else read_record(folder)


def next_version(paths: RunPaths) -> int:
    """Return a number that no version had before."""
    return 1 + max((int(match[1]) for match in _versions(paths)), default=0)


def switch(paths: RunPaths, folder: Path) -> None:
    """Serve `folder` from now on; a reader of `model.pt` sees the old or the new."""
    replace_link(paths.model_link, f"{paths.checkpoints.name}/{folder.name}")
    record_version(paths, folder.name)


def serve_base(paths: RunPaths) -> None:
    """Serve the base model from now on."""
    record_version(paths, None)
    paths.model_link.unlink(missing_ok=True)
    sync(paths.log_path)


def adopt(paths: RunPaths) -> Path | None:
    """Return the version folder that is served, None for the base model.

    A model that a user linked at `model.pt` is kept as version 0; `model.pt` names it at every instant.
    Raises ConfigError if `model.pt` is lost.
    """
    check_link(paths)
    link = paths.model_link
    if not link.exists():
        return None
    served = served_folder(paths)
    if served is None:
        served = paths.version_dir(0)
        paths.checkpoints.mkdir(parents=True, exist_ok=True)
        remove(served)
        replace_link(served, str(link.resolve()))
        switch(paths, served)
    elif recorded_version(paths) != served.name:
        record_version(paths, served.name)  # the link was switched by hand, or right before a crash
    return served


def published(paths: RunPaths) -> list[Path]:
    """Return the version folders that are there, oldest first."""
    return sorted(paths.checkpoints / match[0] for match in _versions(paths) if not match[2])


def rollback(paths: RunPaths) -> Path | None:
    """Serve the model that was served before; returns its folder, None for the base model.

    Raises ConfigError if there was none, if it is no longer kept, or if `model.pt` is lost.
    """
    check_link(paths)
    record = served_record(paths)
    if record is None:
        raise ConfigError(f"{paths.model_link}: nothing was published, so there is no version before it")
    if record.previous is None:
        serve_base(paths)
        return None
    previous = paths.checkpoints / record.previous
    if not previous.exists():
        raise ConfigError(
            f"{previous}: is no longer kept; raise trainer.keep_versions to be able to go back further"
        )
    switch(paths, previous)
    return previous


def mark_served(paths: RunPaths, now: float) -> None:
    """Record that an engine was ready on the served version; `now` is in seconds since the epoch."""
    folder = served_folder(paths)
    if folder is not None and not (folder / SERVED).exists():
        write_whole(folder / SERVED, json.dumps({"time": now}) + "\n")


def is_unserved(paths: RunPaths) -> bool:
    """Return whether no engine was ever ready on the published version that `model.pt` names."""
    folder = served_folder(paths)
    return folder is not None and read_record(folder) is not None and not (folder / SERVED).exists()


def history(paths: RunPaths) -> Iterator[Path]:
    """Iterate over the folders that were served, newest first, as far back as they are kept."""
    folder = served_folder(paths)
    while folder is not None and folder.exists():
        yield folder
        record = read_record(folder)
        folder = paths.checkpoints / record.previous if record and record.previous else None


def lineage(paths: RunPaths) -> set[str]:
    """Return the kept versions that the served one descends from, itself included."""
    names = set()
    for folder in history(paths):
        record = read_record(folder)
        names |= {folder.name, *(record.ancestors if record is not None else ())}
    return {name for name in names if (paths.checkpoints / name).exists()}


def prune(paths: RunPaths, keep: int, *, pinned: Collection[str] = ()) -> None:
    """Delete ancestors of the served version, except the last `keep`, `pinned` and the bases of adapters."""
    kept = {folder.name for _, folder in zip(range(keep), history(paths), strict=False)} | set(pinned)
    kept |= {base.name for name in kept if (base := adapter_base(paths.checkpoints / name)) is not None}
    unfinished = {match[0] for match in _versions(paths) if match[2]}
    for name in (lineage(paths) | unfinished) - kept:
        remove(paths.checkpoints / name)


def adapter_base(folder: Path) -> Path | None:
    """Return the base model of a version's adapter; None for a version without an adapter.

    Raises ConfigError for an adapter whose file is damaged.
    """
    path = folder / TRAINER / "adapter_config.json"
    try:
        return Path(json.loads(path.read_bytes())["base_model_name_or_path"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: is damaged: it names no base model; {RESTORE}") from error


def _versions(paths: RunPaths) -> Iterator[re.Match[str]]:
    folder = paths.checkpoints
    names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
    return (match for name in names if (match := _VERSION.match(name)))
