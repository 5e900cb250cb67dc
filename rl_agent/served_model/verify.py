"""Verifies that a published model is unchanged before it is used: every file has its recorded digest.

A shared file system may show a link or a file late, so a node tries again until a deadline. A base model and
a model that a user put at `model.pt` have no record of their files, so there is nothing to verify. A lost
`model.pt` is refused with the versions that are whole, for the base model is not what was served.

Each node reads a file once in full, and again if its size, time or inode has changed or the machine was
rebooted. The verified files of each node are listed in a file beside the version folders.
"""

import json
import platform
import re
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rl_agent.engine.model import SERVED, lost_link, published_version, recorded_version
from rl_agent.errors import ConfigError, StoreError
from rl_agent.paths import RunPaths
from rl_agent.served_model.digest import FileDigest, first_difference
from rl_agent.served_model.versions import RECORD, RESTORE, Published, published, read_record, served_folder
from rl_agent.system.files import write_whole
from rl_agent.system.processes import boot_id
from rl_agent.weights.store.tensor_sources import local_folder

_POLL_S = 0.5


def verify_served(
    paths: RunPaths,
    *,
    weight_version: int | None = None,
    timeout_s: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Wait until the version that `model.pt` names is whole, and is `weight_version` if that is given.

    Raises StoreError that names the link or file that still differs at the deadline.
    """
    started = clock()
    while reason := difference(paths, weight_version):
        if clock() - started >= timeout_s:
            raise StoreError(f"{reason}; waited {timeout_s:.0f} s for the published model")
        sleep(_POLL_S)


def verify_model(model: str | Path) -> Path | None:
    """Return the files of a model, a folder or a hub name; None for one that was never downloaded.

    Raises StoreError that names the file, if it was published and has changed since.
    """
    files = local_folder(str(model))
    if files is not None:
        try:
            verify_files(files, read_record(files))
        except ConfigError as error:
            raise StoreError(str(error)) from error
    return files


def verify_files(files: Path, record: Published | None) -> None:
    """Raises StoreError that names the file, if a model has changed since it was published with `record`."""
    if record is not None and (reason := _difference(files.resolve(), record)):
        raise StoreError(f"{reason}; {RESTORE}")


def check_served(paths: RunPaths) -> None:
    """Raise ConfigError if `model.pt` is lost; it names the versions that are whole, and how to serve one."""
    if not (problem := lost_link(paths)):
        return
    whole = {folder.name for folder in published(paths) if not version_difference(paths, folder)}
    command = f"rl-agent rollback --log-path {shlex.quote(str(paths.log_path))} --to"
    if not whole:
        raise ConfigError(
            f"{problem}; no version is whole: restore one, or {command} base for the base model"
        )
    numbers = {name: int(name.rpartition("-")[2]) for name in sorted(whole)}
    last = recorded_version(paths)
    choice = numbers[last] if last in numbers else max(numbers.values())
    raise ConfigError(
        f"{problem}; whole versions are {', '.join(map(str, numbers.values()))}: put one back with {command}"
        f" {choice}, or serve the base model with --to base"
    )


def version_difference(paths: RunPaths, folder: Path) -> str:
    """Describe what has changed in a version since it was published; empty if nothing has."""
    if folder == paths.version_dir(0):  # a user's model, of which there is no record
        return "" if folder.exists() else f"{folder}: is not there"
    try:
        record = read_record(folder)
    except ConfigError as error:
        return str(error)
    return f"{folder / RECORD}: there is no such file" if record is None else _difference(folder, record)


def difference(paths: RunPaths, weight_version: int | None) -> str:
    """Describe what has changed since it was published; empty if nothing has, or nothing was published."""
    if problem := lost_link(paths):
        return problem
    version = published_version(paths)
    if weight_version is not None and version != weight_version:
        return f"{paths.model_link}: leads to weight version {version}, not {weight_version}"
    folder = served_folder(paths)
    return "" if folder is None else version_difference(paths, folder)


def _difference(folder: Path, record: Published) -> str:
    digests = {name: digest for name, digest in record.files.items() if name not in (RECORD, SERVED)}
    seen = _VerifiedFiles(folder.parent / f"verified-{_node()}.json")
    unknown = {name: digest for name, digest in digests.items() if not seen.contains(folder / name, digest)}
    if not unknown:
        return ""
    before = {name: _stamp(folder / name) for name in unknown}
    reason = first_difference(folder, unknown)
    if not reason:
        seen.add(folder, unknown, before)
    return reason


class _VerifiedFiles:
    """The files that this node has verified."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._boot = boot_id()
        self._files: dict[str, Any] = {}
        with suppress(OSError, ValueError, AttributeError):
            content = json.loads(path.read_bytes())
            if content.get("boot_id") == self._boot:
                self._files = dict(content["files"])

    def contains(self, file: Path, digest: FileDigest) -> bool:
        with suppress(OSError):
            return self._files.get(str(file)) == {**asdict(digest), **_stamp(file)}
        return False

    def add(
        self, folder: Path, digests: Mapping[str, FileDigest], stamps: Mapping[str, Mapping[str, int]]
    ) -> None:
        """Remember files by their stamps from before they were read, unless the disk is read-only."""
        self._files |= {str(folder / name): {**asdict(d), **stamps[name]} for name, d in digests.items()}
        there = {name: record for name, record in self._files.items() if Path(name).exists()}
        content = json.dumps({"boot_id": self._boot, "files": there}, indent=1)
        with suppress(OSError):
            write_whole(self._path, content + "\n", is_durable=False)


def _stamp(file: Path) -> dict[str, int]:
    try:
        status = file.stat()
    except OSError:
        return {}
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}


def _node() -> str:
    return re.sub(r"[^\w.-]", "_", platform.node()) or "node"
