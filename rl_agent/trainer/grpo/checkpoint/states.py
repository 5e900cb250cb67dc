"""Finds the checkpoints of a trainer, and reads what they say beside their tensors."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from rl_agent.errors import StoreError
from rl_agent.paths import RunPaths
from rl_agent.served_model import versions
from rl_agent.served_model.digest import FileDigest
from rl_agent.system.files import write_whole

STATE = "state.json"
PUBLISHED = "published.json"
_STEP = re.compile(r"^step-(\d+)$")
_FILES, _CHECKSUM = "files", "checksum"


def saved_steps(folder: Path) -> dict[int, Path]:
    """List the whole checkpoints in a folder, oldest first."""
    if not folder.is_dir():
        return {}
    checkpoints = {int(match[1]): entry for entry in folder.iterdir() if (match := _STEP.match(entry.name))}
    return dict(sorted(checkpoints.items()))


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Read what a checkpoint says beside its tensors. Raises StoreError if it is not what was written."""
    path = checkpoint / STATE
    try:
        state: dict[str, Any] = json.loads(path.read_bytes())
        checksum = state.pop(_CHECKSUM, None)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, AttributeError, TypeError) as error:
        raise StoreError(f"{path}: differs from what was written") from error
    if checksum != _checksum(state):
        raise StoreError(f"{path}: differs from what was written")
    return state


def write_state(
    checkpoint: Path, state: Mapping[str, Any], files: Mapping[str, FileDigest] | None = None
) -> None:
    """Write the state; `files` are the digests for `recorded_files`, None keeps those that the state has."""
    digests = {} if files is None else {_FILES: {name: asdict(digest) for name, digest in files.items()}}
    content = json.loads(json.dumps({**state, **digests}))
    write_whole(checkpoint / STATE, json.dumps(content | {_CHECKSUM: _checksum(content)}))


def recorded_files(state: dict[str, Any]) -> dict[str, FileDigest]:
    """Take the digests of a checkpoint's files out of its state."""
    return {name: FileDigest(**digest) for name, digest in state.pop(_FILES).items()}


def _checksum(state: Mapping[str, Any]) -> str:
    return blake3(json.dumps(state, sort_keys=True).encode()).hexdigest()


def newest_served(folder: Path) -> str | None:
    """Read the name of the model that the newest checkpoint builds on; None where there is no checkpoint."""
    state = _newest_state(folder)
    return None if state is None else str(state["served"])


def note_served(checkpoint: Path, served: str) -> None:
    """Record which model was made from this checkpoint and is served now."""
    write_state(checkpoint, read_state(checkpoint) | {"served": served})


def trained_iteration(streaming: Path) -> int:
    """Read the last iteration that the newest checkpoint was trained on to its end; 0: none."""
    state = _newest_state(streaming / "checkpoints")
    return 0 if state is None else int(state["iteration"])


def _newest_state(folder: Path) -> dict[str, Any] | None:
    """Read the newest state that is not damaged. Raises StoreError if all are."""
    damaged: StoreError | None = None
    for checkpoint in reversed(saved_steps(folder).values()):
        try:
            return read_state(checkpoint)
        except StoreError as error:
            damaged = damaged or error
    if damaged is not None:
        raise damaged
    return None


@dataclass(frozen=True, slots=True)
class AnnouncedVersions:
    """The weight versions that were announced to engines."""

    newest: int = 0
    """The newest version of any run."""
    run_id: str = ""
    made_in: dict[int, int | None] = field(default_factory=dict)
    """Those of this run, with the iteration that made each; None: one that was given up."""

    def of_run(self, run_id: str) -> dict[int, int | None]:
        """Return the versions of this run; those of another have other iterations."""
        return self.made_in if run_id == self.run_id else {}


def note_published(streaming: Path, run_id: str, weight_version: int, iteration: int) -> None:
    """Record, durably, that engines are about to get this version, so that its number is not used again."""
    before = read_published(streaming)
    made_in = before.of_run(run_id) | {weight_version: iteration}
    _write_published(streaming, AnnouncedVersions(max(before.newest, weight_version), run_id, made_in))


def give_up_published(streaming: Path, after: int) -> None:
    """Mark versions after `after` as abandoned by a rollback: what they sampled is not trained on."""
    before = read_published(streaming)
    made_in = {
        version: None if version > after else iteration for version, iteration in before.made_in.items()
    }
    _write_published(streaming, replace(before, made_in=made_in))


def read_published(streaming: Path) -> AnnouncedVersions:
    """Read which versions were announced to engines."""
    try:
        return msgspec.json.decode((streaming / PUBLISHED).read_bytes(), type=AnnouncedVersions)
    except FileNotFoundError:
        return AnnouncedVersions()


def next_number(paths: RunPaths) -> int:
    """Return the next free version number, after those of models and those that only engines know."""
    return max(versions.next_version(paths), read_published(paths.streaming).newest + 1)


def _write_published(streaming: Path, published: AnnouncedVersions) -> None:
    streaming.mkdir(parents=True, exist_ok=True)
    write_whole(streaming / PUBLISHED, msgspec.json.encode(published).decode())


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """The progress of a streaming trainer."""

    pid: int
    iteration: int
    """The last one that it has trained on to its end and published."""
    weight_version: int

    @classmethod
    def read(cls, path: Path) -> "StreamProgress | None":
        """Read the file of an attempt; None before the trainer has written it."""
        try:
            return cls(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
