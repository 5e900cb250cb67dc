"""Finds the checkpoints that a training leaves in its output folder."""

import json
import re
from pathlib import Path

STATE = "trainer_state.json"

_CHECKPOINT = re.compile(r"^checkpoint-(\d+)$")


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
    try:
        global_step(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    weights = list(folder.glob("*.safetensors"))
    return bool(weights) and all(path.stat().st_size > 0 for path in weights)


def global_step(checkpoint: Path) -> int:
    """Read Trainer's step counter."""
    return int(json.loads((checkpoint / STATE).read_bytes())["global_step"])


def _match(entry: Path) -> re.Match[str] | None:
    return _CHECKPOINT.match(entry.name) if entry.is_dir() else None
