"""Finds the checkpoints that a training leaves in its output folder, and reads what they hold."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from rl_agent.served_model.weights import first_not_finite, read_tensors

STATE = "trainer_state.json"

_CHECKPOINT = re.compile(r"^checkpoint-(\d+)$")


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """A saved state of the optimizer."""

    folder: Path
    global_step: int
    is_lora: bool
    deepspeed_ranks: int
    """Number of processes that saved its shards; 0 if DeepSpeed was not used."""


def find_checkpoint(training: Path) -> Path | None:
    """Find the last finished checkpoint-K, else the folder itself if it contains the final model."""
    if not training.is_dir():
        return None
    checkpoints = {int(match[1]): training / match[0] for match in map(_match, training.iterdir()) if match}
    for folder in (*(checkpoints[step] for step in sorted(checkpoints, reverse=True)), training):
        if _is_finished(folder):
            return folder
    return None


def _is_finished(folder: Path) -> bool:
    """Return whether a checkpoint is complete; Trainer syncs nothing, so a failing disk may leave empty
    files."""
    weights = list(folder.glob("*.safetensors"))
    return _has_step(folder) and bool(weights) and all(path.stat().st_size > 0 for path in weights)


def _has_step(folder: Path) -> bool:
    try:
        global_step(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def global_step(checkpoint: Path) -> int:
    """Read Trainer's step counter."""
    return int(json.loads((checkpoint / STATE).read_bytes())["global_step"])


def find_progress(folder: Path) -> OptimizerState | None:
    """Find the optimizer's state in a checkpoint folder; None if it is damaged or was not saved."""
    if not _has_step(folder) or not (folder / "scheduler.pt").is_file():
        return None
    shards = sum(1 for _ in folder.glob("global_step*/*_optim_states.pt"))
    if not shards and not (folder / "optimizer.pt").is_file():
        return None
    return OptimizerState(folder, global_step(folder), (folder / "adapter_config.json").is_file(), shards)


def has_reached(training: Path, step: int) -> bool:
    """Return whether a training came to that step with finite weights."""
    checkpoint = find_checkpoint(training)
    return checkpoint is not None and global_step(checkpoint) == step and is_finite(checkpoint)


def is_finite(checkpoint: Path) -> bool:
    """Return whether no weight is NaN or infinite."""
    return first_not_finite(read_tensors(checkpoint)) is None


def _match(entry: Path) -> re.Match[str] | None:
    return _CHECKPOINT.match(entry.name) if entry.is_dir() else None
