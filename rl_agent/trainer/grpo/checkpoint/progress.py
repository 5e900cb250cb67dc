"""Writes and reads what a checkpoint holds beside its tensors, and checks its files against their digests."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from rl_agent.config.sections.grpo import LoraSettings
from rl_agent.errors import ConfigError, StoreError
from rl_agent.served_model.digest import FileDigest, digest_files, first_difference
from rl_agent.trainer.grpo.checkpoint.states import STATE, read_state, recorded_files, write_state
from rl_agent.trainer.grpo.data.group_codec import decode, encode
from rl_agent.trainer.grpo.data.samples import Group
from rl_agent.trainer.grpo.gpu_sharing.window import LearntWindow

FILES = "files"
"""Digests in a rank's own file, of the tensors that it wrote."""
_GROUPS = "groups.bin"
_TRAINS_TOWER = "trains_tower"
"""The vision tower, or adapters in it, are among the trained weights."""


@dataclass(frozen=True, slots=True)
class TrainerProgress:
    """The part of a checkpoint that is no tensor: steps made, and what became of the groups."""

    steps: int
    updates: int
    """Steps that were not skipped: what the moments' bias is corrected by."""
    version: int
    """The version of the weights."""
    iteration: int
    """The last one that was trained on to its end; 0: none."""
    served: str
    """Name of the model that this training began with or put at `model.pt` last; empty: the base model."""
    consumed: frozenset[str]
    buffered: tuple[Group, ...] = ()
    """The groups that wait for a step; a file of their own holds them."""
    steps_of_iteration: int = 0
    """The finished steps of the iteration that is trained on."""
    run_id: str = ""
    """The run whose groups these are."""
    windows: Mapping[int, LearntWindow] = field(default_factory=dict)
    """Learnt windows of an engine that shares the devices, by the number of other engines."""
    updates_after: Mapping[int, int] = field(default_factory=dict)
    """The number of updates in all by the end of each of the last iterations."""
    has_start: bool = False
    """The weights that the iteration began with are among the tensors."""


def read_progress(folder: Path) -> TrainerProgress:
    """Read what a checkpoint says beside its tensors."""
    state = read_state(folder)
    progress = msgspec.convert(state, TrainerProgress, str_keys=True)
    return replace(progress, buffered=tuple(decode((folder / _GROUPS).read_bytes())))


def check_kind(folder: Path, lora: LoraSettings, *, trains_tower: bool) -> None:
    """Raise ConfigError if a checkpoint is of other trained weights: of all, or of another adapter."""
    state = read_state(folder)
    saved = state["lora"]
    if (trained := state.get(_TRAINS_TOWER, False)) != trains_tower:
        key = f"trainer.freeze_vision_tower={str(not trained).lower()}"
        raise ConfigError(f"{folder}: was made with {key}; go on with that, or begin anew")
    if saved["rank"] is None is lora.rank:
        return
    if saved != _trained(lora):
        raise ConfigError(f"{folder}: was made with trainer.lora={saved}; go on with that, or begin anew")


def _trained(lora: LoraSettings) -> dict[str, Any]:
    """Return what of the settings the trained weights depend on."""
    return lora.model_dump(mode="json", exclude={"publish"})


def damage(checkpoint: Path, part: int = 0, parts: int = 1) -> str:
    """Name what differs from what was written, in a share of the files; empty if nothing does."""
    try:
        files = recorded_files(read_state(checkpoint))
    except StoreError as error:
        return str(error)
    return first_difference(checkpoint, {name: files[name] for name in sorted(files)[part::parts]})


def write_progress(
    folder: Path, progress: TrainerProgress, lora: LoraSettings, *, trains_tower: bool
) -> None:
    """Write `state.json` last, with the digests of all files; each rank has left those of its tensors."""
    (folder / _GROUPS).write_bytes(encode(progress.buffered))
    files: dict[str, FileDigest] = {}
    for of_rank in folder.glob("rank-*.json"):
        digests = json.loads(of_rank.read_bytes())[FILES]
        files |= {name: FileDigest(**digest) for name, digest in digests.items()}
    others = [file for file in folder.rglob("*") if file.is_file() and file.name != STATE]
    others = [file for file in others if file.relative_to(folder).as_posix() not in files]
    files |= digest_files(sorted(others), below=folder)
    state = {each.name: getattr(progress, each.name) for each in fields(progress) if each.name != "buffered"}
    state |= {"lora": _trained(lora), _TRAINS_TOWER: trains_tower}
    write_state(folder, msgspec.to_builtins(state, str_keys=True, order="deterministic"), files)
